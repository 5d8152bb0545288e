#include <fstream>

#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class BadPromptTest : public ProgramTest {
 protected:
  static std::vector<std::string> refused(const char* command, const Words& words,
                                          const std::string& input) {
    Words all = {"--load", golden("hf/gpt2").string()};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(command, all, {.input = input});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    return errors_of(outcome);
  }
  static std::vector<std::string> generation(const std::string& input, const Words& more = {}) {
    Words words = {"--prompt-file", "-"};
    words.insert(words.end(), more.begin(), more.end());
    return refused("generate", words, input);
  }
  static std::vector<std::string> scoring(const std::string& input) {
    return refused("score", {}, input);
  }
};

TEST_F(BadPromptTest, IdsOutsideTheVocabulary) {
  for (const char* ids : {"{\"ids\": [1, 131]}\n", "{\"ids\": [1, 2000000]}\n"}) {
    EXPECT_THAT(generation(ids),
                ElementsAre(AllOf(HasSubstr("standard input:1: token id "),
                                  HasSubstr("is not in the model's vocabulary of 131"))));
    EXPECT_THAT(scoring(ids), ElementsAre(HasSubstr("is not in the model's vocabulary of 131")));
  }
  // Not wrapped to 2, not rounded to 1.
  for (const char* id : {"-1", "4294967298", "1.5", "\"a\""}) {
    const std::string line = std::string("{\"ids\": [1, ") + id + "]}\n";
    const std::string expected = std::string(":1: token id ") + id + " must be an integer";
    EXPECT_THAT(generation(line), ElementsAre(HasSubstr(expected)));
    EXPECT_THAT(scoring(line), ElementsAre(HasSubstr(expected)));
  }
}

TEST_F(BadPromptTest, MorePositionsThanTheModelHas) {
  EXPECT_THAT(generation("{\"ids\": [1, 2, 3, 4]}\n", {"--max-new-tokens", "61"}),
              ElementsAre(AllOf(HasSubstr("65 tokens"), HasSubstr("64 positions"),
                                HasSubstr("--max-new-tokens"))));
  std::string ids = "1";
  for (int i = 0; i < 65; ++i) ids += ", 1";
  EXPECT_THAT(scoring("{\"ids\": [" + ids + "]}\n"),
              ElementsAre(AllOf(HasSubstr("64 positions"), HasSubstr("cut the text"),
                                testing::Not(HasSubstr("--max-new-tokens")))));
}

TEST_F(BadPromptTest, EmptyAndShort) {
  EXPECT_THAT(generation("{\"ids\": []}\n"), ElementsAre(HasSubstr("has no tokens")));
  EXPECT_THAT(scoring("{\"ids\": [1]}\n"), ElementsAre(HasSubstr("fewer than two tokens")));
}

TEST_F(BadPromptTest, BrokenLinesAreNamedByNumber) {
  EXPECT_THAT(generation("{\"ids\": [1]}\n{\"ids\": [1, \"a\"]}\n"),
              ElementsAre(HasSubstr(":2: ")));
  EXPECT_THAT(generation("{\"ids\": [1\n"), ElementsAre(HasSubstr(":1: ")));
  EXPECT_THAT(scoring("{\"id\": [1, 2]}\n"),
              ElementsAre(AllOf(HasSubstr(":1: "), HasSubstr("\"ids\" or \"text\""))));
  EXPECT_THAT(
      scoring("plain text\n"),
      ElementsAre(HasSubstr("standard input:1: this is not JSON; write a line as {\"text\"")));
  EXPECT_THAT(scoring("[1, 2]\n"), ElementsAre(HasSubstr("input:1: this JSON is not an object")));
  EXPECT_THAT(scoring("{\"ids\": 1}\n"), ElementsAre(HasSubstr("must be a list of integers")));
  EXPECT_THAT(scoring("{\"text\": 1}\n"), ElementsAre(HasSubstr("must be a string")));
}

TEST_F(BadPromptTest, TextWithoutTokenizer) {
  EXPECT_THAT(generation("some text\n"), ElementsAre(HasSubstr("--vocab-file")));
}

// At once, not when a text needs an id that the model lacks.
TEST_F(BadPromptTest, TokenizerLargerThanTheModel) {
  const std::filesystem::path data = golden("megatron/data");
  const Words tokenizer = {"--vocab-file", (data / "vocab.json").string(), "--merge-file",
                           (data / "merges.txt").string()};
  const auto says = ElementsAre(HasSubstr("the tokenizer has 502 ids, the model 131 rows"));
  EXPECT_THAT(generation("{\"ids\": [1]}\n", tokenizer), says);
  EXPECT_THAT(refused("score", tokenizer, "{\"ids\": [1, 2]}\n"), says);
  // Rank 0 opens the tokenizer; the others end with it, whoever started them.
  for (const char* ranks : {"threads", "processes"}) {
    Words words = {"--nproc-per-node",
                   "2",
                   "--ranks",
                   ranks,
                   "generate",
                   "--prompt",
                   "x",
                   "--load",
                   golden("hf/gpt2").string(),
                   "--tensor-model-parallel-size",
                   "2"};
    words.insert(words.end(), tokenizer.begin(), tokenizer.end());
    const Outcome outcome = run("launch", words);
    EXPECT_EQ(outcome.exit_code, 2) << ranks << outcome.err;
    EXPECT_THAT(errors_of(outcome), says) << ranks;
  }
}

TEST_F(BadPromptTest, MissingFile) {
  EXPECT_THAT(refused("generate", {"--prompt-file", path("none").string()}, ""),
              ElementsAre(HasSubstr(path("none").string())));
}

}  // namespace
}  // namespace megatron::program
