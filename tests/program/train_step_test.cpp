#include <nlohmann/json.hpp>

#include "megatron/formats/json_file.h"
#include "tests/program/program_test.h"

// Train steps in shared libraries (--train-step), with the example's library.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TrainStepTest : public ProgramTest {
 protected:
  Flags with_library(const Words& args, const std::string& library = MG_KEY_TOKENS) const {
    return golden_flags()
        .with("--train-iters", "4")
        .with("--eval-iters", "0")
        .with("--train-step", library)
        .with_words("--train-step-args", args);
  }
  std::vector<Metrics> metrics_after(const Flags& flags, int ranks = 1) {
    const std::filesystem::path file = path(std::to_string(++runs_) + ".jsonl");
    Words words = flags.with("--metrics-jsonl", file.string()).words();
    if (ranks > 1) words.insert(words.begin(), {"--nproc-per-node", "2", "pretrain-gpt"});
    const Outcome outcome = run(ranks > 1 ? "launch" : "pretrain-gpt", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return metrics_of(file);
  }
  void expect_refused(const Flags& flags, const testing::Matcher<std::string>& message) const {
    const Outcome outcome = run("pretrain-gpt", flags.words());
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(errors_of(outcome), ElementsAre(message));
  }

 private:
  int runs_ = 0;
};

// The frequent tokens of the corpus.
constexpr const char* kKeys = "key_tokens=11,262,290";

TEST_F(TrainStepTest, WithoutExtraWeightIsThePlainLoss) {
  const std::vector<Metrics> want =
      metrics_after(golden_flags().with("--train-iters", "4").with("--eval-iters", "0"));
  EXPECT_EQ(metrics_after(with_library({"alpha=0", kKeys})), want);
}

TEST_F(TrainStepTest, WeightsSamplesWithKeyTokensAlikeInAnyLayout) {
  const std::vector<Metrics> plain = metrics_after(with_library({"alpha=0"}));
  const std::vector<Metrics> weighted = metrics_after(with_library({"alpha=1", kKeys}));
  EXPECT_GT(weighted.front().at("lm loss"), plain.front().at("lm loss"));
  const std::vector<Metrics> on_two = metrics_after(with_library({"alpha=1", kKeys}), 2);
  ASSERT_EQ(on_two.size(), weighted.size());
  for (size_t i = 0; i < weighted.size(); ++i) {
    EXPECT_NEAR(on_two[i].at("lm loss"), weighted[i].at("lm loss"), 1e-4) << i;
  }
}

// adjust_parameter() makes optimizer groups.
TEST_F(TrainStepTest, AGroupOfParametersHasItsOwnRate) {
  const auto embeddings_after = [&](const std::string& iterations, const std::string& rate) {
    const std::filesystem::path save = path("save" + iterations + rate);
    train(with_library({"embedding_lr=" + rate})
              .with("--train-iters", iterations)
              .with("--eval-iters", "0")
              .with("--lr-warmup-iters", "0")
              .with("--save", save.string())
              .with("--save-interval", "10"));
    const SavedRun saved = read_saved_run(iteration_in(save, std::stoi(iterations)));
    const Tensor& table = saved.tensors.at("weights/embedding.word_embeddings.weight");
    return std::vector<float>(table.span<float>().begin(), table.span<float>().end());
  };
  const std::vector<float> after_one = embeddings_after("1", "0");
  EXPECT_EQ(embeddings_after("2", "0"), after_one);
  EXPECT_NE(embeddings_after("2", "1"), after_one);
}

TEST_F(TrainStepTest, WorksInFinetune) {
  const Flags plain = Flags()
                          .with("--model_name_or_path", golden("hf/gpt2").string())
                          .with("--train_file", golden("finetune/train.txt").string())
                          .with("--tokenizer-type", "NullTokenizer")
                          .with("--vocab-size", "130")
                          .with("--block_size", "16")
                          .with("--max_train_steps", "3")
                          .with("--log-interval", "1")
                          .with("--device", "cpu");
  const auto perplexity_after = [&](const std::string& name, const Flags& flags) {
    const Outcome outcome =
        run("finetune", flags.with("--output_dir", path(name).string()).words());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_json(path(name) / "all_results.json")["perplexity"].get<double>();
  };
  const double want = perplexity_after("plain", plain);
  const Flags step = plain.with("--train-step", MG_KEY_TOKENS);
  EXPECT_NEAR(perplexity_after("same", step.with("--train-step-args", "alpha=0")), want,
              1e-3 * want);
  EXPECT_NE(perplexity_after("other", step.with("--train-step-args", "alpha=9", kKeys)), want);
}

TEST_F(TrainStepTest, SaysWhyALibraryIsRefused) {
  expect_refused(with_library({}, path("none.so").string()),
                 AllOf(HasSubstr("--train-step"), HasSubstr("there is no such file")));
  expect_refused(with_library({}, golden("megatron/data/merges.txt").string()),
                 AllOf(HasSubstr("cannot be loaded"), HasSubstr("docs/library.md")));
  expect_refused(
      with_library({}, MG_OTHER_INTERFACE),
      AllOf(HasSubstr("was built with headers 0 for CPU, and this program with headers "),
            HasSubstr("build it again")));
  expect_refused(with_library({}, "/lib/x86_64-linux-gnu/libm.so.6"),
                 HasSubstr("end its source with MEGATRON_TRAIN_STEP(make)"));
  expect_refused(with_library({"beta=1"}),
                 HasSubstr("does not know beta; it knows alpha, embedding_lr, key_tokens"));
  expect_refused(with_library({"alpha=much"}), HasSubstr("alpha=much: must be a number"));
}

}  // namespace
}  // namespace megatron::program
