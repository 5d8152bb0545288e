#include <cmath>
#include <cstdio>

#include "megatron/core/file.h"
#include "tests/program/inference_test.h"

namespace megatron::program {
namespace {

using testing::HasSubstr;

class EvaluateTest : public InferenceTest {
 protected:
  static Outcome evaluate(const std::filesystem::path& model, const std::string& task,
                          const std::filesystem::path& data, const Words& more = {}) {
    Words words = {"--task", task, "--valid-data", data.string(), "--load", model.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run("evaluate", words);
  }
  // The line between the dashed ones.
  static std::string result_of(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const size_t begin = outcome.out.find(" validation results on ");
    if (begin == std::string::npos) return outcome.out;
    const std::string line = outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
    const std::string dashes(line.size() + 1, '-');
    EXPECT_THAT(outcome.out, HasSubstr(dashes + "\n" + line + "\n" + dashes + "\n"));
    return line;
  }
  static std::string on_four_ranks(const std::filesystem::path& model, const std::string& task,
                                   const std::filesystem::path& data) {
    return result_of(
        run("launch", {"--nproc-per-node", "4", "evaluate", "--task", task, "--valid-data",
                       data.string(), "--load", model.string(), "--tensor-model-parallel-size", "2",
                       "--pipeline-model-parallel-size", "2"}));
  }
};

TEST_F(EvaluateTest, PerplexityIsThatOfTheScore) {
  const std::filesystem::path model = trained();
  const std::filesystem::path data = path("wiki.txt");
  write_text_atomically(data, "the river ( a word ) , the house \n");
  const std::vector<nlohmann::json> scored = parsed_lines(
      run("score", {"--load", model.string()},
          {.input = nlohmann::json{{"text", "the river (a word), the house\n"}}.dump() + "\n"})
          .out);
  ASSERT_EQ(scored.size(), 1u);
  const double loss = scored[0].at("loss");
  const auto tokens = static_cast<double>(scored[0].at("logprobs").size());

  const std::string line = result_of(evaluate(model, "WIKITEXT103", data));
  char number[32];
  std::snprintf(number, sizeof number, "avg loss: %.4E |", loss);
  EXPECT_THAT(line, HasSubstr(number));
  std::snprintf(number, sizeof number, "| ppl: %.4E |", std::exp(loss));
  EXPECT_THAT(line, HasSubstr(number));
  std::snprintf(number, sizeof number, "| adjusted ppl: %.4E |", std::exp(loss * tokens / 8));
  EXPECT_THAT(line, HasSubstr(number));  // nine words
  EXPECT_EQ(on_four_ranks(model, "WIKITEXT103", data), line);
  // The flags of a training script do no harm.
  EXPECT_EQ(result_of(evaluate(model, "WIKITEXT103", data,
                               {"--num-layers", "2", "--hidden-size", "64", "--no-load-optim",
                                "--no-load-rng", "--overlapping-eval", "32"})),
            line);
}

TEST_F(EvaluateTest, LastWordsAreCounted) {
  const std::filesystem::path model = trained();
  const std::filesystem::path data = path("words.jsonl");
  std::string lines;
  for (const char* text : {"the river and the house", "a word of the king", "in the beginning"}) {
    lines += nlohmann::json{{"text", text}}.dump() + "\n";
  }
  write_text_atomically(data, lines);
  const std::string line = result_of(evaluate(model, "LAMBADA", data, {"--strict-lambada"}));
  EXPECT_THAT(line, HasSubstr("| total examples: 3.0000E+00 | avg accuracy: "));
  const std::string last = result_of(evaluate(model, "LAMBADA", data));
  EXPECT_EQ(on_four_ranks(model, "LAMBADA", data), last);
}

TEST_F(EvaluateTest, SaysWhatIsWrong) {
  const std::filesystem::path model = trained();
  const auto error = [&](const std::string& task, const std::string& file,
                         const std::string& text) {
    write_text_atomically(path(file), text);
    const Outcome outcome = evaluate(model, task, path(file));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(
      error("SQUAD", "a.txt", "a b"),
      HasSubstr("--task SQUAD is not available; use WIKITEXT103, LAMBADA, MNLI, QQP or RACE"));
  EXPECT_THAT(error("WIKITEXT103", "a.txt", "a b"), HasSubstr("give --detokenizer none"));
  EXPECT_THAT(error("WIKITEXT103", "wiki.txt", "a"), HasSubstr("has fewer than two words"));
  EXPECT_THAT(error("WIKITEXT103", "wiki.txt", "a \xff b"), HasSubstr("is not valid UTF-8"));
  EXPECT_THAT(error("LAMBADA", "b.jsonl", "{\"text\": \"a b c\"}\n{\"t\": 1}\n"),
              HasSubstr("b.jsonl:2: \"text\" is missing"));
  EXPECT_THAT(error("LAMBADA", "b.jsonl", ""), HasSubstr("has no lines"));
}

}  // namespace
}  // namespace megatron::program
