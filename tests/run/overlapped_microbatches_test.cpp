// Two microbatches that take turns change the time of sums, not their order: the bits of one after
// the other, and the results of one rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/run/expert_training.h"

namespace megatron::expert_training {
namespace {

constexpr int kIterations = 3;

const FlagWords kTwo = {"--tensor-model-parallel-size", "2", "--sequence-parallel"};
const FlagWords kUntied = {"--untie-embeddings-and-output-weights"};

void expect_the_bits_of_one_after_the_other(const FlagWords& model, const LayoutFlags& layout) {
  SCOPED_TRACE(layout.text());
  LayoutFlags overlapped = layout;
  overlapped.flags.emplace_back("--overlap-microbatches");
  expect_identical_results(train(model, overlapped, kIterations),
                           train(model, layout, kIterations));
}

TEST(OverlappedMicrobatchesTest, TrainAsOneRank) {
  const std::vector<IterationResult> want = train(kDenseModel, {}, kIterations)[0];
  // Gradients that ZeRO 2 and 3 divide are summed over ranks once for both microbatches.
  for (LayoutFlags layout :
       {LayoutFlags{2, {"--tensor-model-parallel-size", "2"}}, LayoutFlags{2, kTwo},
        LayoutFlags{2, kTwo + FlagWords{"--tp-comm-overlap"}},
        LayoutFlags{2, {"--context-parallel-size", "2"}},
        LayoutFlags{4, kTwo + FlagWords{"--zero-stage", "2"}},
        LayoutFlags{4, kTwo + FlagWords{"--zero-stage", "3"}}}) {
    layout.flags.emplace_back("--overlap-microbatches");
    SCOPED_TRACE(layout.text());
    expect_equal_results(train(kDenseModel, layout, kIterations), want);
  }
}

TEST(OverlappedMicrobatchesTest, HaveTheBitsOfOneAfterTheOtherOnEveryLayout) {
  const FlagWords cp2 = {"--context-parallel-size", "2"};
  const FlagWords divided = {"--use-distributed-optimizer", "--overlap-grad-reduce",
                             "--overlap-param-gather", "--ddp-bucket-size", "500"};
  for (const LayoutFlags& layout :
       {LayoutFlags{2, {"--tensor-model-parallel-size", "2"}}, LayoutFlags{2, kTwo},
        LayoutFlags{4, kTwo + cp2}, LayoutFlags{4, kTwo + divided}, LayoutFlags{2, cp2},
        LayoutFlags{2, cp2 + FlagWords{"--cp-comm-type", "a2a"}},
        LayoutFlags{2, cp2 + FlagWords{"--cp-comm-type", "all_gather"}},
        LayoutFlags{4,
                    {"--context-parallel-size", "4", "--cp-comm-type", "a2a+p2p",
                     "--hierarchical-context-parallel-sizes", "2", "2"}},
        LayoutFlags{2, kTwo + FlagWords{"--recompute-granularity", "full", "--recompute-method",
                                        "uniform", "--recompute-num-layers", "1"}},
        LayoutFlags{2, kTwo + FlagWords{"--recompute-granularity", "selective"}},
        LayoutFlags{2, kTwo + FlagWords{"--cpu-offloading-num-layers", "3",
                                        "--min-offloaded-tensor-size", "0"}},
        LayoutFlags{
            2, kTwo + FlagWords{"--recompute-granularity", "full", "--recompute-method", "uniform",
                                "--recompute-num-layers", "1", "--checkpoint-in-cpu"}}}) {
    expect_the_bits_of_one_after_the_other(kDenseModel + kUntied, layout);
  }
}

TEST(OverlappedMicrobatchesTest, HaveTheBitsOfOneAfterTheOtherForEveryModel) {
  expect_the_bits_of_one_after_the_other(kDenseModel + kLlamaStyle, {2, kTwo});
  expect_the_bits_of_one_after_the_other(kDenseModel + kLlamaStyle + FlagWords{"--bf16"},
                                         {2, kTwo});
  expect_the_bits_of_one_after_the_other(
      kDenseModel + kUntied + FlagWords{"--hidden-dropout", "0.1", "--attention-dropout", "0.1"},
      {2, kTwo});
  expect_the_bits_of_one_after_the_other(
      kDenseModel + kUntied + FlagWords{"--lora-rank", "2", "--lora-target-modules", "all-linear"},
      {2, kTwo});
  expect_the_bits_of_one_after_the_other(kModel + kUntied,
                                         {2, {"--expert-model-parallel-size", "2"}});
  expect_the_bits_of_one_after_the_other(
      kModel + kUntied, {4, kTwo + FlagWords{"--expert-model-parallel-size", "2"}});
}

TEST(OverlappedMicrobatchesTest, HaveTheBitsOfOneAfterTheOtherInFp8) {
  const FlagWords fp8 = {"--hidden-size", "32",    "--ffn-hidden-size", "64", "--bf16",
                         "--fp8-format",  "hybrid"};
  expect_the_bits_of_one_after_the_other(kDenseModel + kUntied + fp8, {2, kTwo});
  expect_the_bits_of_one_after_the_other(kDenseModel + kLlamaStyle + fp8, {2, kTwo});
  expect_the_bits_of_one_after_the_other(
      kDenseModel + kUntied + fp8 + FlagWords{"--fp8-recipe", "tensorwise"}, {2, kTwo});
}

}  // namespace
}  // namespace megatron::expert_training
