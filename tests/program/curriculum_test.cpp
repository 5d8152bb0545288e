#include <fstream>

#include "tests/program/exact_resume.h"

// curriculum_learning of a DeepSpeed configuration: training on the beginnings of samples.
namespace megatron::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CurriculumTest : public ExactResumeTest {
 protected:
  // The golden run with sequences of `lengths`, each but the last up to an iteration of `max_step`.
  Flags flags(const std::string& lengths, const std::string& max_step) const {
    std::ofstream(path("ds.json"))
        << R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
               "curriculum_learning": {
                 "enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8,
                 "max_difficulty": 32, "schedule_type": "fixed_discrete",
                 "schedule_config": {"difficulty": [)"
        << lengths << R"(], "max_step": [)" << max_step << "]}}}";
    return golden_flags().with("--deepspeed_config", path("ds.json").string());
  }

  std::vector<Metrics> metrics(const Flags& run) const {
    std::filesystem::remove(path("m.jsonl"));
    train(run.with("--metrics-jsonl", path("m.jsonl").string()));
    return metrics_of(path("m.jsonl"));
  }

  static std::vector<double> numbers(const std::vector<Metrics>& rows, const std::string& name) {
    std::vector<double> found;
    for (const Metrics& row : rows) {
      if (row.contains(name)) found.push_back(row.at(name));
    }
    return found;
  }
};

TEST_F(CurriculumTest, ResumeIsExact) { expect_exact_resume(flags("8, 20, 32", "6, 12"), 9); }

TEST_F(CurriculumTest, TheFullLengthChangesNothing) {
  const Flags few = golden_flags().with("--train-iters", "4").with("--eval-interval", "2");
  const Flags full = flags("32", "").with("--train-iters", "4").with("--eval-interval", "2");
  const std::vector<Metrics> got = metrics(full);
  const std::vector<Metrics> want = metrics(few);
  for (const char* name : {"lm loss", "grad_norm", "lm loss validation"}) {
    EXPECT_EQ(numbers(got, name), numbers(want, name));
  }
  EXPECT_EQ(numbers(got, "lm loss").size(), 4u);
}

// All samples repeat 8 tokens, so that a short sequence is a whole sample of --seq-length 8.
TEST_F(CurriculumTest, ShortSequencesAreThoseOfAShorterRun) {
  write_periodic_dataset(path("periodic"), {3, 1, 4, 15, 9, 2, 6, 5});
  const auto on_periodic = [&](const Flags& run) {
    return run.with("--data-path", path("periodic").string())
        .with("--train-iters", "3")
        .with("--eval-iters", "0");
  };
  const std::vector<Metrics> got = metrics(on_periodic(flags("8, 16", "2")));
  const std::vector<Metrics> want = metrics(on_periodic(golden_flags().with("--seq-length", "8")));
  EXPECT_THAT(numbers(got, "curriculum_seqlen"), ElementsAre(8, 8, 16));
  EXPECT_THAT(numbers(got, "consumed_train_tokens"), ElementsAre(64, 128, 256));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i].at("lm loss"), want[i].at("lm loss"));
  EXPECT_NE(got[2].at("lm loss"), want[2].at("lm loss"));
}

TEST_F(CurriculumTest, TokensEndTheTraining) {
  const Flags run = flags("8, 32", "3")
                        .without("--train-iters")
                        .without("--lr-decay-iters")
                        .without("--lr-warmup-iters")
                        .with("--train-tokens", "449")  // 3 * 64 + 256, and one more
                        .with("--lr-decay-tokens", "448")
                        .with("--lr-decay-style", "linear");
  const Outcome outcome = train(run);
  EXPECT_THAT(outcome.out, HasSubstr("iteration        5/       5 | consumed samples:           40 "
                                     "| consumed tokens:          704 |"));
  // From 1e-3 to 1e-4 in 448 tokens: after each iteration the rate of the next one.
  std::vector<std::string> rates;
  for (const IterationText& line : iterations_of(outcome.out)) {
    rates.push_back(line.text("learning rate"));
  }
  EXPECT_THAT(rates, ElementsAre("8.714E-04", "7.429E-04", "6.143E-04", "1.000E-04", "1.000E-04"));
}

TEST_F(CurriculumTest, StagesOfAPipelineExchangeShortActivations) {
  const Flags run = flags("8, 24", "2").with("--train-iters", "4").with("--eval-iters", "2");
  const std::vector<Metrics> want = metrics(run);
  std::filesystem::remove(path("m.jsonl"));
  Words words = run.with("--pipeline-model-parallel-size", "2")
                    .with("--metrics-jsonl", path("m.jsonl").string())
                    .words();
  words.insert(words.begin(), {"--nproc-per-node", "2", "pretrain-gpt"});
  const Outcome outcome = program::run("launch", words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<Metrics> got = metrics_of(path("m.jsonl"));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (const char* name : {"lm loss", "lm loss validation"}) {
      if (!want[i].contains(name)) continue;
      EXPECT_NEAR(got[i].at(name), want[i].at(name), 1e-5);
    }
  }
}

TEST_F(CurriculumTest, IsForGptWithOneBatchSize) {
  const Flags ramped = flags("8, 32", "3")
                           .without("--train-iters")
                           .without("--lr-decay-iters")
                           .without("--lr-warmup-iters")
                           .with("--train-samples", "80")
                           .with("--rampup-batch-size", "2", "2", "20");
  EXPECT_THAT(errors_of(run("pretrain-gpt", ramped.words())),
              ElementsAre(HasSubstr("curriculum_learning and --rampup-batch-size exclude")));
  EXPECT_THAT(errors_of(run("pretrain-gpt", flags("8, 64", "3").words())),
              ElementsAre(HasSubstr("the greatest length 64 must not exceed --seq-length 32")));
}

}  // namespace
}  // namespace megatron::program
