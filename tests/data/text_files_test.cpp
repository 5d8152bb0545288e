#include "megatron/data/text_files.h"

#include <gmock/gmock.h>

#include <fstream>

#include "megatron/core/error.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TextFilesTest : public testing::Test {
 protected:
  std::filesystem::path written(const std::string& name, const std::string& text) const {
    std::ofstream(directory_.path() / name, std::ios::binary) << text;
    return directory_.path() / name;
  }
  static std::vector<std::string> texts_of(const std::filesystem::path& file,
                                           const TextFileOptions& options = {}) {
    std::vector<std::string> texts;
    read_texts(file, options, [&](std::string_view text) { texts.emplace_back(text); });
    return texts;
  }
  TemporaryDirectory directory_;
};

TEST_F(TextFilesTest, LinesKeepTheirEnds) {
  const auto file = written("a.txt", "one\n\ntwo three\r\nlast");
  EXPECT_THAT(texts_of(file), ElementsAre("one\n", "\n", "two three\n", "last\n"));
  EXPECT_THAT(texts_of(file, {.keeps_linebreaks = false}),
              ElementsAre("one", "", "two three", "last"));
}

TEST_F(TextFilesTest, CsvHasAColumnOfTexts) {
  const auto file = written("a.csv", "id,text\n1,plain\n\n2,\"a, \"\"b\"\"\nand c\"\n3,\n4,5\"\n");
  EXPECT_THAT(texts_of(file), ElementsAre("plain", "a, \"b\"\nand c", "", "5\""));
  EXPECT_THAT(texts_of(file, {.column = "body"}), ElementsAre("1", "2", "3", "4"));
}

TEST_F(TextFilesTest, WrongCsvNamesTheLine) {
  EXPECT_THAT([&] { texts_of(written("a.csv", "id,text\n1,a,b\n")); },
              ThrowsMessage<FormatError>(
                  HasSubstr("a.csv: line 2: the row has 3 fields, the header 2; put fields")));
  EXPECT_THAT([&] { texts_of(written("b.csv", "text\na\n\"open\nb\n")); },
              ThrowsMessage<FormatError>(HasSubstr("b.csv: line 3: a double quote is never")));
}

TEST_F(TextFilesTest, JsonHasAKeyOfTexts) {
  EXPECT_THAT(texts_of(written("a.jsonl", "{\"id\": 1, \"text\": \"a\"}\n\n{\"text\": \"b\"}\n")),
              ElementsAre("a", "b"));
  EXPECT_THAT(texts_of(written("b.json", "{\"body\": \"x\", \"id\": \"7\"}\n")), ElementsAre("x"));
  EXPECT_THAT(texts_of(written("c.json", "[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n")),
              ElementsAre("a", "b"));
  EXPECT_THAT(texts_of(written("d.json", "[\"a\", \"b\"]")), ElementsAre("a", "b"));
}

TEST_F(TextFilesTest, WrongJsonNamesTheLine) {
  EXPECT_THAT([&] { texts_of(written("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n")); },
              ThrowsMessage<FormatError>(HasSubstr("a.jsonl: line 2: ")));
  EXPECT_THAT([&] { texts_of(written("b.jsonl", "{\"text\": [\"a\", \"b\"]}\n")); },
              ThrowsMessage<FormatError>(HasSubstr("line 1: expected one text, not a list")));
  EXPECT_THAT([&] { texts_of(written("c.json", "[{\"text\": \"a\"}, 5]")); },
              ThrowsMessage<FormatError>(HasSubstr("entry 1 of the list has no text")));
  EXPECT_THAT([&] { texts_of(written("d.json", "[{\"text\": \"a\"},")); },
              ThrowsMessage<FormatError>(HasSubstr("is not valid JSON")));
}

TEST_F(TextFilesTest, FolderStandsForItsFiles) {
  const auto b = written("b.txt", "");
  const auto a = written("a.jsonl.gz", "");
  written("notes.md", "");
  EXPECT_THAT(text_files(std::vector{directory_.path().string()}), ElementsAre(a, b));
}

TEST_F(TextFilesTest, OtherFilesAreRefused) {
  const auto refusal = [](const std::filesystem::path& path) {
    return [path] { text_files(std::vector{path.string()}); };
  };
  EXPECT_THAT(
      refusal(written("a.arrow", "")),
      ThrowsMessage<ConfigError>(HasSubstr(".arrow files are not read; give the .parquet")));
  EXPECT_THAT(refusal(written("a.bin", "")),
              ThrowsMessage<ConfigError>(HasSubstr("a.bin: is not a text file; give .txt")));
  EXPECT_THAT(refusal(directory_.path()),
              ThrowsMessage<ConfigError>(HasSubstr("the folder has no .txt")));
  EXPECT_THAT(refusal("/nowhere"), ThrowsMessage<IoError>("/nowhere: not found"));
}

}  // namespace
}  // namespace megatron
