#include "annex/corpus/commands/corpus.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using WordList = std::vector<std::string>;

class CorpusTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    return folder_.write(name, content);
  }
  // Standard output and standard error of a tool.
  static std::string run(const WordList& words) {
    CapturedStdout out;
    CapturedStderr err;
    EXPECT_EQ(corpus(words), 0);
    const std::string text = out.text();
    return text + err.text();
  }
  static std::string refusal(const WordList& words) {
    return message_of<ConfigError>([&] { corpus(words); });
  }

 private:
  TemporaryDirectory folder_;
};

TEST_F(CorpusTest, TheStepsOfDeduplicationFitTogether) {
  const std::string text =
      "It was the best of times, it was the worst of times, it was the age of wisdom, it was the "
      "age of foolishness, it was the epoch of belief, it was the epoch of incredulity, ";
  write("a.json", R"({"url": "u1", "text": ")" + text + "\"}\nbroken\n");
  write("b.json", R"({"url": "u2", "text": ")" + text + "said he.\"}\n" +
                      R"({"url": "u3", "text": "Call me Ishmael. Some years ago."})");
  const std::string folder = path("");
  const std::string merged = run({"merge", "--json_path", folder, "--output_file", path("merged")});
  EXPECT_THAT(merged, AllOf(HasSubstr("warning: " + path("a.json") + ":2: "),
                            HasSubstr("; line left out"), HasSubstr("bad lines left out: 1"),
                            HasSubstr("wrote " + path("merged") + ": 3 of 4 lines")));
  EXPECT_THAT(
      run({"find-duplicates", "--inputs", path("merged"), "url", "--output", path("pairs"),
           "--log-interval", "2", "--workers", "2", "--jaccard-parallel", "--jaccard", "min"}),
      AllOf(HasSubstr("Processed 2 lines ("), HasSubstr("3 documents")));
  EXPECT_THAT(run({"group-duplicates", path("pairs"), path("groups"), "0.9"}),
              HasSubstr("1 groups, 1 documents to remove"));
  EXPECT_THAT(run({"remove-duplicates", path("groups"), path("merged"), path("unique")}),
              AllOf(HasSubstr("2 of 3 lines"), HasSubstr("1 groups, 1 documents removed")));
  run({"add-id", "--input-file", path("unique"), "--output-file", path("numbered"), "--id-prefix",
       "owt"});
  EXPECT_THAT(read_text(path("numbered")), HasSubstr(R"("url": "u3", )"));
  EXPECT_THAT(read_text(path("numbered")), HasSubstr(R"("adlr_id": "owt-0000000002"})"));
}

TEST_F(CorpusTest, FilterNgramsReadsTheFilesOfItsTasks) {
  const std::string words = "one two three four five six seven eight nine ten eleven twelve 13";
  write("lambada", "{\"text\": \"" + words + "\"}\n");
  write("mine", "{\"q\": \"" + words + " 14\"}\n");
  write("data", "{\"body\": \"" + words + "\"}\n{\"body\": \"Another text.\"}\n");
  EXPECT_THAT(run({"filter-ngrams", "--tasks", "lambada", "mine", "--lambada-path", path("lambada"),
                   "--task-file", "mine=" + path("mine") + ":q", "--dedup-dataset", path("data"),
                   "body", "--output", path("out"), "--num-threads", "2"}),
              AllOf(HasSubstr("2 sequences of tasks, 0 of them too frequent"),
                    HasSubstr("2 documents: 0 split, 1 ignored, 0 over the threshold, 0 trimmed"),
                    HasSubstr("wrote " + path("out") + ": 1 lines")));
  EXPECT_EQ(read_text(path("out")),
            "{\"body\": \"Another text.\", \"split_id\": \"lambada-mine-0000000002-0000\"}\n");
}

TEST_F(CorpusTest, UrlsAndTextsAreCleaned) {
  write("urls.txt", "http://example.com/a\nhttp://example.com/a.zip\nhttp://youtu.be/b\n");
  EXPECT_THAT(run({"blacklist-urls", path(""), path("good")}),
              AllOf(HasSubstr("rejected: 1 by domain, 1 by extension, 0 short, 0 malformed, 0 "
                              "repeated"),
                    HasSubstr("wrote " + path("good") + ": 1 of 3 URLs")));
  const std::string golden = source_path("tests/golden/megatron/data/");
  const std::string data = write("data.json", "{\"text\": \"the  cat\"}\n");
  EXPECT_THAT(run({"clean", data, path("clean.json"), "--vocab-file", golden + "vocab.json",
                   "--merge-file", golden + "merges.txt"}),
              AllOf(HasSubstr("wrote " + path("clean.json") + ": 0 of 1 lines"),
                    HasSubstr("0 repaired; dropped: 0 not English, 1 short")));
  EXPECT_THAT(run({"fix", "--input-files", data, "--tasks", "general_cleaning", "--output-path",
                   path("fixed/here")}),
              HasSubstr("1 of 1 documents kept; 0 under 512 characters"));
  EXPECT_EQ(read_text(path("fixed/here/data_cleaned.json")), "{\"text\": \"the cat\"}\n");
  EXPECT_EQ(read_text(path("fixed/here/data_filtered.json")), "");
}

// The line of Megatron-LM's document names no vocabulary: the script downloads GPT-2's.
TEST_F(CorpusTest, TextsAreCleanedWithGpt2OfTheCache) {
  namespace fs = std::filesystem;
  const fs::path model = fs::path(path("hub")) / "models--gpt2";
  fs::create_directories(model / "refs");
  fs::create_directories(model / "snapshots" / "abc123");
  ::setenv("HF_HUB_CACHE", path("hub").c_str(), 1);
  const std::string data = write("data.json", "{\"text\": \"the  cat\"}\n");
  EXPECT_THAT(refusal({"clean", data, path("out.json")}),
              HasSubstr("Hugging Face's cache has no gpt2; give --vocab-file vocab.json"));
  write_text_atomically(model / "refs" / "main", "abc123");
  const fs::path golden = source_path("tests/golden/megatron/data/");
  for (const char* file : {"vocab.json", "merges.txt"}) {
    fs::copy(golden / file, model / "snapshots" / "abc123" / file);
  }
  EXPECT_THAT(run({"clean", data, path("out.json")}), HasSubstr("0 of 1 lines"));
  ::unsetenv("HF_HUB_CACHE");
}

TEST_F(CorpusTest, HelpNamesToolsAndFlags) {
  EXPECT_THAT(run({}), AllOf(HasSubstr("usage: megatron corpus <tool>"), HasSubstr("add-id")));
  EXPECT_EQ(run({"--help"}), run({}));
  EXPECT_THAT(run({"find-duplicates", "--help"}), HasSubstr("--heuristic-iter"));
  EXPECT_THAT(run({"remove-duplicates", "--help"}), HasSubstr("GROUPS DATA OUTPUT"));
}

TEST_F(CorpusTest, MistakesAreExplained) {
  EXPECT_THAT(refusal({"polish"}), HasSubstr("corpus: polish is not a tool"));
  EXPECT_THAT(refusal({"group-duplicates", "a"}),
              HasSubstr("1 words stand before the flags; write megatron corpus group-duplicates "
                        "PAIRS GROUPS [THRESHOLD] [flags]"));
  EXPECT_THAT(refusal({"group-duplicates", "a", "b", "70"}),
              HasSubstr("THRESHOLD 70 must be a number in [0, 1]"));
  EXPECT_THAT(refusal({"find-duplicates", "--inputs", "a"}),
              HasSubstr("give a key after each file"));
  EXPECT_THAT(refusal({"find-duplicates"}),
              AllOf(HasSubstr("there are no documents"), HasSubstr("there is no output")));
  EXPECT_THAT(refusal({"filter-ngrams", "--task-file", "squad"}),
              HasSubstr("--task-file squad must be NAME=FILE or NAME=FILE:MEMBER"));
  EXPECT_THAT(refusal({"filter-ngrams", "--dedup-dataset", "data"}),
              HasSubstr("--dedup-dataset has 1 words; give a file and a key"));
  EXPECT_THAT(refusal({"fix"}),
              AllOf(HasSubstr("--input-files is missing"), HasSubstr("--tasks is missing"),
                    HasSubstr("--output-path is missing")));
  EXPECT_THAT(refusal({"add-id"}),
              AllOf(HasSubstr("--input-file is missing"), HasSubstr("--output-file is missing"),
                    HasSubstr("--id-prefix is missing")));
  EXPECT_THAT(refusal({"merge", "--workers", "-1", "--log-interval", "0"}),
              AllOf(HasSubstr("--workers -1"), HasSubstr("--log-interval 0")));
}

}  // namespace
}  // namespace megatron::cli
