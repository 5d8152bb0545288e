// Weight passes change the time of sums, not their order: the bits of 1F1B, and the results of one
// rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/run/expert_training.h"

namespace megatron::expert_training {
namespace {

constexpr int kIterations = 3;

LayoutFlags layout_of(int ranks, int stages, const FlagWords& flags = {}) {
  LayoutFlags layout{ranks, flags};
  add_flag(layout.flags, "--pipeline-model-parallel-size", stages);
  return layout;
}

LayoutFlags with_weight_passes(LayoutFlags layout) {
  layout.flags.emplace_back("--enable-zero-bubble");
  return layout;
}

void expect_the_bits_of_1f1b(const FlagWords& model, const LayoutFlags& layout) {
  SCOPED_TRACE(layout.text());
  const RankResults want = train(model, layout, kIterations);
  expect_identical_results(train(model, with_weight_passes(layout), kIterations), want);
}

TEST(ZeroBubbleTest, TrainsAsOneRank) {
  const std::vector<IterationResult> want = train(kDenseModel, {}, kIterations)[0];
  for (const LayoutFlags& layout :
       {layout_of(2, 2), layout_of(4, 4), layout_of(4, 2),
        layout_of(2, 2, {"--num-layers-per-virtual-pipeline-stage", "1"}),
        layout_of(2, 2, {"--pipeline-model-parallel-layout", "E|tt|t|tL"}),
        layout_of(2, 2, {"--zero-bubble-max-pending-backward", "3"}),
        layout_of(4, 4, {"--zero-bubble-max-pending-backward", "6"})}) {
    SCOPED_TRACE(layout.text());
    const RankResults got = train(kDenseModel, with_weight_passes(layout), kIterations);
    expect_equal_results(got, want);
    expect_identical_results(got, train(kDenseModel, layout, kIterations));
  }
}

TEST(ZeroBubbleTest, HasTheBitsOf1F1BOnEveryLayout) {
  const FlagWords tp2 = {"--tensor-model-parallel-size", "2"};
  for (const LayoutFlags& layout :
       {layout_of(4, 2, tp2), layout_of(4, 2, tp2 + FlagWords{"--sequence-parallel"}),
        layout_of(4, 2, tp2 + FlagWords{"--sequence-parallel", "--tp-comm-overlap"}),
        layout_of(4, 2, {"--context-parallel-size", "2"}),
        layout_of(4, 2, {"--overlap-grad-reduce"}),
        layout_of(4, 2,
                  {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
                   "--ddp-bucket-size", "500"}),
        layout_of(2, 2, {"--pipeline-model-parallel-layout", "Et*3|tL"}),
        layout_of(2, 2,
                  {"--recompute-granularity", "full", "--recompute-method", "uniform",
                   "--recompute-num-layers", "1"})}) {
    expect_the_bits_of_1f1b(kDenseModel, layout);
  }
}

TEST(ZeroBubbleTest, HasTheBitsOf1F1BForEveryModel) {
  expect_the_bits_of_1f1b(kDenseModel + kLlamaStyle, layout_of(4, 4));
  expect_the_bits_of_1f1b(kDenseModel + kLlamaStyle + FlagWords{"--bf16"}, layout_of(2, 2));
  expect_the_bits_of_1f1b(kDenseModel + kLlamaStyle + FlagWords{"--mtp-num-layers", "2"},
                          layout_of(2, 2));
  expect_the_bits_of_1f1b(
      kDenseModel + FlagWords{"--lora-rank", "2", "--lora-target-modules", "all-linear"},
      layout_of(2, 2));
  expect_the_bits_of_1f1b(kModel, layout_of(2, 2));
}

TEST(ZeroBubbleTest, HasTheBitsOf1F1BInFp8) {
  const FlagWords model = {"--hidden-size", "32",    "--ffn-hidden-size", "64", "--bf16",
                           "--fp8-format",  "hybrid"};
  const FlagWords tp2 = {"--tensor-model-parallel-size", "2", "--sequence-parallel"};
  expect_the_bits_of_1f1b(kDenseModel + model, layout_of(2, 2));
  expect_the_bits_of_1f1b(kDenseModel + model + FlagWords{"--fp8-recipe", "tensorwise"},
                          layout_of(2, 2));
  expect_the_bits_of_1f1b(kDenseModel + model, layout_of(4, 2, tp2));
}

}  // namespace
}  // namespace megatron::expert_training
