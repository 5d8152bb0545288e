#include "annex/corpus/line_tools.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::HasSubstr;

TEST(MergeJsonFiles, JoinsByNameAndKeepsBytes) {
  const TemporaryDirectory folder;
  folder.write("b.json", "{\"text\":\"\\u00e9\"}\nnot json\n");
  folder.write("a.json", "{\"text\":  \"a\"}");
  folder.write("c.jsonl", "{}");
  const std::filesystem::path output = folder.write("merged.json", "{\"old\": 1}\n");
  const LineCounts counts = merge_json_files(folder.path(), output, {});
  EXPECT_EQ(read_text(output), "{\"text\":  \"a\"}\n{\"text\":\"\\u00e9\"}\n");
  EXPECT_EQ(counts.lines, 3);
  EXPECT_EQ(counts.written, 2);
  EXPECT_EQ(counts.bad, 1);
}

TEST(MergeJsonFiles, RefusesAFolderWithoutFiles) {
  const TemporaryDirectory folder;
  const auto message = [&](const std::filesystem::path& from) {
    return message_of([&] { merge_json_files(from, folder.path() / "out.json", {}); });
  };
  EXPECT_THAT(message(folder.path()), HasSubstr("the folder has no file *.json"));
  EXPECT_THAT(message(folder.path() / "none"), HasSubstr("cannot list the folder"));
}

TEST(AddIds, CountsGoodDocumentsFromOne) {
  const TemporaryDirectory folder;
  const auto input = folder.write(
      "in", "{\"text\":\"a\"}\n[]\n{\"adlr_id\":\"old\",\"text\":\"\\u00e9\",\"n\":1.0}\n");
  const LineCounts counts = add_ids(input, folder.path() / "out", "owt", {.threads = 2});
  EXPECT_EQ(read_text(folder.path() / "out"),
            "{\"text\": \"a\", \"adlr_id\": \"owt-0000000001\"}\n"
            "{\"adlr_id\": \"owt-0000000002\", \"text\": \"\xC3\xA9\", \"n\": 1.0}\n");
  EXPECT_EQ(counts.bad, 1);
}

}  // namespace
}  // namespace megatron::corpus
