// Experts that are made of the MLPs of a dense checkpoint (--moe-use-upcycling).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/run/expert_training.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::expert_training {
namespace {

struct UpcyclingCase {
  const char* name;
  FlagWords model;    // of both runs
  FlagWords experts;  // of the second
  LayoutFlags layout = {};
};
void PrintTo(const UpcyclingCase& c, std::ostream* out) { *out << c.name; }

class UpcyclingTest : public testing::TestWithParam<UpcyclingCase> {};

// All experts of a token together are the MLP: the first loss is that of the dense model, whatever
// the router chooses.
TEST_P(UpcyclingTest, BeginsWithTheLossOfTheDenseModel) {
  const UpcyclingCase& c = GetParam();
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string();
  const FlagWords dense = kDenseModel + c.model;
  train(dense, {}, 2, "", saved);
  const IterationResult want =
      train(dense + FlagWords{"--finetune", "--load", saved}, {}, 1, saved)[0][0];
  const FlagWords words =
      dense + c.experts + FlagWords{"--num-experts", "4", "--moe-use-upcycling", "--load", saved};
  const RankResults got = train(words, c.layout, 2, saved);
  ASSERT_FALSE(got.back()[0].losses.empty());
  EXPECT_NEAR(got.back()[0].losses[0].second, want.losses[0].second, 2e-6 * want.losses[0].second);
  EXPECT_NE(got.back()[1].losses[0].second, got.back()[0].losses[0].second) << "it trains on";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, UpcyclingTest,
    testing::Values(UpcyclingCase{"copies", {"--swiglu", "--disable-bias-linear"}, {}},
                    UpcyclingCase{"biases", {}, {"--moe-router-topk", "3"}},
                    UpcyclingCase{"some_layers", {"--swiglu"}, {"--moe-layer-freq", "2"}},
                    UpcyclingCase{"parts",
                                  {"--squared-relu", "--disable-bias-linear"},
                                  {"--moe-upcycling-granularity", "2"}},
                    UpcyclingCase{"expert_ranks",
                                  {"--swiglu", "--disable-bias-linear"},
                                  {},
                                  {.ranks = 4,
                                   .flags = {"--tensor-model-parallel-size", "2",
                                             "--sequence-parallel", "--expert-model-parallel-size",
                                             "2", "--expert-tensor-parallel-size", "2"}}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(UpcyclingProblemTest, NamesAnMlpOfAnotherWidth) {
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string();
  train(kDenseModel, {}, 1, "", saved);
  const CapturedStdout captured_out;
  const FlagWords words =
      kDenseModel +
      FlagWords{
          "--ffn-hidden-size", "64", "--num-experts", "4", "--moe-use-upcycling", "--load", saved};
  EXPECT_THAT(message_of<FormatError>([&] { ExpertTraining(words, comm::Group(), saved); }),
              testing::HasSubstr("has 40 rows or columns, not --moe-upcycling-granularity 1 times "
                                 "--moe-ffn-hidden-size 64"));
}

}  // namespace
}  // namespace megatron::expert_training
