// Experts with products in FP8: they train as those in 16 bits, nearly, and alike on every layout
// of ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/run/expert_training.h"

namespace megatron::expert_training {
namespace {

// Every extent is a multiple of 16 on each of two ranks.
const FlagWords kWideModel = kDenseModel + FlagWords{"--init-method-std",
                                                     "0.05",
                                                     "--lr",
                                                     "0.003",
                                                     "--hidden-size",
                                                     "32",
                                                     "--ffn-hidden-size",
                                                     "64",
                                                     "--num-experts",
                                                     "4",
                                                     "--moe-ffn-hidden-size",
                                                     "32",
                                                     "--moe-router-topk",
                                                     "2",
                                                     "--moe-shared-expert-intermediate-size",
                                                     "32",
                                                     "--swiglu",
                                                     "--disable-bias-linear",
                                                     "--moe-aux-loss-coeff",
                                                     "0.01"};
const FlagWords kHybrid = {"--fp8-format", "hybrid"};

std::vector<double> losses_of(const FlagWords& flags, const LayoutFlags& layout = {}) {
  std::vector<double> losses;
  const RankResults results = train(flags, layout, 5);
  losses.reserve(results.back().size());
  for (const IterationResult& one : results.back()) {
    losses.push_back(one.losses.at(0).second);
  }
  return losses;
}

void expect_alike(const std::vector<double>& got, const std::vector<double>& want,
                  double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance * want[i]) << "iteration " << i;
  }
}

TEST(Fp8ExpertsTest, TrainNearlyAsWithoutFp8) {
  const std::vector<double> want = losses_of(kWideModel);
  for (const FlagWords& fp8 :
       {kHybrid, FlagWords{"--fp8-format", "e4m3", "--fp8-recipe", "tensorwise"},
        kHybrid + FlagWords{"--no-fp8-wgrad"}, kHybrid + FlagWords{"--moe-layer-freq", "[0,1,1,0]"},
        kHybrid +
            FlagWords{"--recompute-granularity", "selective", "--recompute-modules", "moe"}}) {
    SCOPED_TRACE(fp8[1] + " " + fp8.back());
    const bool is_other_model = fp8.back().starts_with("[");
    const std::vector<double> got = losses_of(kWideModel + fp8);
    expect_alike(
        got, is_other_model ? losses_of(kWideModel + FlagWords{fp8.end() - 2, fp8.end()}) : want,
        0.005);
    EXPECT_NE(got[0], want[0]) << "FP8 rounds";
  }
}

// Rows have their own scales and matrices, too, so that a layout changes sums only. A share of an
// expert rounds its part of rows.
TEST(Fp8ExpertsTest, LayoutsTrainAlike) {
  const FlagWords model = kWideModel + kHybrid;
  const std::vector<double> want = losses_of(model);
  const LayoutFlags layouts[] = {
      {.ranks = 2, .flags = {"--expert-model-parallel-size", "2"}},
      {.ranks = 4,
       .flags = {"--tensor-model-parallel-size", "2", "--sequence-parallel",
                 "--expert-model-parallel-size", "4", "--expert-tensor-parallel-size", "1",
                 "--use-distributed-optimizer", "--fp8-param-gather"}},
      {.ranks = 2,
       .flags = {"--tensor-model-parallel-size", "2", "--sequence-parallel",
                 "--expert-tensor-parallel-size", "2"}},
      {.ranks = 4,
       .flags = {"--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "2",
                 "--zero-stage", "1", "--overlap-grad-reduce", "--overlap-param-gather"}}};
  for (const LayoutFlags& layout : layouts) {
    SCOPED_TRACE(layout.text());
    const std::vector<double> got = losses_of(model, layout);
    expect_alike(got, want, 1e-3);
  }
  // The first iteration of ranks with other experts makes the same roundings.
  EXPECT_NEAR(losses_of(model, layouts[0])[0], want[0], 1e-6 * want[0]);
}

}  // namespace
}  // namespace megatron::expert_training
