#include <cmath>
#include <set>

#include "tests/program/program_test.h"

// Masks of dropout depend on the sample alone, and a gradient is the mean over samples: how a
// global batch is cut into microbatches changes rounding only.
namespace megatron::program {
namespace {

class BatchesTest : public ProgramTest {
 protected:
  std::vector<Metrics> train_with(int micro_batch_size, const Flags& flags) const {
    const std::string name = "micro" + std::to_string(micro_batch_size) + ".jsonl";
    train(flags.with("--micro-batch-size", std::to_string(micro_batch_size))
              .with("--attention-dropout", "0.1")
              .with("--hidden-dropout", "0.1")
              .with("--eval-iters", "0")
              .with("--metrics-jsonl", path(name).string()));
    return metrics_of(path(name));
  }
};

void expect_near(const std::vector<Metrics>& got, const std::vector<Metrics>& want,
                 const char* name, double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].at(name), want[i].at(name), relative * std::abs(want[i].at(name)))
        << name << " of iteration " << i + 1;
  }
}

TEST_F(BatchesTest, MicroBatchSizeChangesRoundingOnly) {
  const Flags flags = golden_flags().with("--train-iters", "10");
  const std::vector<Metrics> want = train_with(8, flags);
  ASSERT_EQ(want.size(), 10u);
  for (const int micro : {1, 2, 4}) {
    const std::vector<Metrics> got = train_with(micro, flags);
    expect_near(got, want, "lm loss", 1e-5);
    expect_near(got, want, "grad_norm", 1e-5);
  }
}

// --eod-mask-loss masks a different number of tokens in each microbatch, which then weighs as much
// as others. With --calculate-per-token-loss tokens do.
TEST_F(BatchesTest, TokensWeighAlikeInAnyMicrobatch) {
  std::vector<int32_t> texts;
  for (int32_t i = 0; i < 2000; ++i) {
    texts.push_back(i * i % 97 < 30 + i % 32 ? i * 7 % 500 : 511);
  }
  write_periodic_dataset(path("texts"), texts);
  const Flags flags = golden_flags()
                          .with("--data-path", path("texts").string())
                          .without("--vocab-file")
                          .without("--merge-file")
                          .with("--tokenizer-type", "NullTokenizer")
                          .with("--vocab-size", "511")
                          .with("--train-iters", "10");
  const Flags masked = flags.with("--eod-mask-loss");
  const Flags per_token = masked.with("--calculate-per-token-loss");
  const std::vector<Metrics> want = train_with(8, per_token);
  for (const int micro : {1, 2}) {
    std::filesystem::remove(path("micro" + std::to_string(micro) + ".jsonl"));
    const std::vector<Metrics> got = train_with(micro, per_token);
    expect_near(got, want, "lm loss", 1e-5);
    expect_near(got, want, "grad_norm", 1e-5);
  }
  // One microbatch of the whole batch is the plain definition.
  std::filesystem::remove(path("micro8.jsonl"));
  const std::vector<Metrics> whole = train_with(8, masked);
  expect_near(whole, want, "lm loss", 1e-5);
  expect_near(whole, want, "grad_norm", 1e-5);
  std::filesystem::remove(path("micro1.jsonl"));
  const double mean_of_means = train_with(1, masked).front().at("lm loss");
  EXPECT_GT(std::abs(mean_of_means - want.front().at("lm loss")), 1e-4);

  // Where all tokens count it changes no bit.
  for (const int micro : {1, 4}) {
    const auto file = path("micro" + std::to_string(micro) + ".jsonl");
    std::filesystem::remove(file);
    const std::vector<Metrics> plain = train_with(micro, flags);
    std::filesystem::remove(file);
    EXPECT_EQ(train_with(micro, flags.with("--calculate-per-token-loss")), plain);
  }
}

// All samples are the same and nothing is learned, so the masks make the only difference.
TEST_F(BatchesTest, EverySampleHasItsOwnMasks) {
  std::vector<int32_t> period;
  for (int32_t i = 0; i < 32; ++i) period.push_back(i * i * 7 % 500);
  write_periodic_dataset(path("periodic"), period);
  const Flags flags = golden_flags()
                          .with("--data-path", path("periodic").string())
                          .with("--train-iters", "6")
                          .with("--lr", "0")
                          .with("--min-lr", "0");
  for (const int micro : {1, 8}) {
    std::set<double> losses;
    for (const Metrics& row : train_with(micro, flags)) losses.insert(row.at("lm loss"));
    EXPECT_EQ(losses.size(), 6u);
    std::filesystem::remove(path("micro" + std::to_string(micro) + ".jsonl"));
  }
  const Outcome plain = train(flags);
  for (const IterationText& line : iterations_of(plain.out)) {
    EXPECT_EQ(line.text("lm loss"), iterations_of(plain.out).front().text("lm loss"));
  }
}

TEST_F(BatchesTest, RampupGrowsAsTheRuleSays) {
  const Flags flags = golden_flags()
                          .without("--train-iters")
                          .without("--lr-decay-iters")
                          .without("--lr-warmup-iters")
                          .with("--train-samples", "72")
                          .with("--rampup-batch-size", "2", "2", "60");
  const Outcome outcome = train(flags);
  EXPECT_THAT(outcome.out, testing::HasSubstr("will use batch size rampup starting from global "
                                              "batch size 2 to global batch size 8"));
  int64_t consumed = 0;
  const std::vector<IterationText> lines = iterations_of(outcome.out);
  ASSERT_EQ(lines.size(), 20u);
  for (const IterationText& line : lines) {
    const int64_t batch = consumed > 60 ? 8 : 2 + consumed / 20 * 2;
    EXPECT_EQ(line.number("global batch size"), static_cast<double>(batch));
    consumed += batch;
    EXPECT_EQ(line.number("consumed samples"), static_cast<double>(consumed));
  }
}

}  // namespace
}  // namespace megatron::program
