// Activations that wait in host memory (--cpu-offloading-num-layers) are the same activations: not
// a bit of a training changes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/run/expert_training.h"

namespace megatron::expert_training {
namespace {

LayoutFlags ranks_with(int ranks, const FlagWords& flags) { return {ranks, flags}; }

// Layers of each stage leave, all or not.
void expect_the_bits_without_offloading(const FlagWords& model, const LayoutFlags& layout) {
  SCOPED_TRACE(layout.text());
  const FlagWords dropout = {"--attention-dropout", "0.1", "--hidden-dropout", "0.1"};
  const RankResults want = train(model + dropout, layout, 3);
  for (const char* num_layers : {"1", "3", "4"}) {
    SCOPED_TRACE(num_layers);
    LayoutFlags offloaded = layout;
    for (const char* word :
         {"--cpu-offloading-num-layers", num_layers, "--min-offloaded-tensor-size", "0"}) {
      offloaded.flags.emplace_back(word);
    }
    expect_identical_results(train(model + dropout, offloaded, 3), want);
  }
}

TEST(OffloadedLayersTest, ChangeNoBitOnAnyLayout) {
  const FlagWords tp2 = {"--tensor-model-parallel-size", "2"};
  const FlagWords pp2 = {"--pipeline-model-parallel-size", "2"};
  for (const LayoutFlags& layout :
       {ranks_with(1, {}), ranks_with(2, tp2),
        ranks_with(2, tp2 + FlagWords{"--sequence-parallel"}),
        ranks_with(2, tp2 + FlagWords{"--sequence-parallel", "--tp-comm-overlap"}),
        ranks_with(2, pp2),
        ranks_with(2, pp2 + FlagWords{"--num-layers-per-virtual-pipeline-stage", "1"}),
        ranks_with(4, pp2 + tp2 + FlagWords{"--sequence-parallel"}),
        ranks_with(2, {"--context-parallel-size", "2"}),
        ranks_with(2, {"--context-parallel-size", "2", "--cp-comm-type", "a2a"}),
        ranks_with(2, {"--zero-stage", "3"}),
        ranks_with(2, {"--use-distributed-optimizer", "--overlap-grad-reduce",
                       "--overlap-param-gather"})}) {
    expect_the_bits_without_offloading(kDenseModel, layout);
  }
}

// Gradients of weights read what came back for the gradients of activations.
TEST(OffloadedLayersTest, ChangeNoBitWithWeightPasses) {
  const FlagWords flags = {"--pipeline-model-parallel-size", "2", "--enable-zero-bubble"};
  expect_the_bits_without_offloading(kDenseModel, ranks_with(2, flags));
  expect_the_bits_without_offloading(
      kDenseModel,
      ranks_with(2, flags + FlagWords{"--num-layers-per-virtual-pipeline-stage", "1"}));
  expect_the_bits_without_offloading(
      kDenseModel,
      ranks_with(4, flags + FlagWords{"--tensor-model-parallel-size", "2", "--sequence-parallel"}));
  expect_the_bits_without_offloading(kModel, ranks_with(2, flags));
}

TEST(OffloadedLayersTest, ChangeNoBitBesideRecomputedParts) {
  const FlagWords pp2 = {"--pipeline-model-parallel-size", "2"};
  const FlagWords some = {"--recompute-granularity", "selective", "--recompute-modules"};
  expect_the_bits_without_offloading(
      kDenseModel, ranks_with(2, pp2 + some + FlagWords{"layernorm", "activation"}));
  expect_the_bits_without_offloading(kDenseModel,
                                     ranks_with(2, pp2 + some + FlagWords{"layernorm", "mlp"}));
  expect_the_bits_without_offloading(kModel,
                                     ranks_with(2, pp2 + some + FlagWords{"layernorm", "moe"}));
}

TEST(OffloadedLayersTest, ChangeNoBitOfExperts) {
  const FlagWords balanced = kModel + FlagWords{"--moe-aux-loss-coeff", "0.01",
                                                "--moe-shared-expert-intermediate-size", "8"};
  expect_the_bits_without_offloading(balanced, ranks_with(1, {}));
  expect_the_bits_without_offloading(balanced,
                                     ranks_with(2, {"--expert-model-parallel-size", "2"}));
  expect_the_bits_without_offloading(
      balanced, ranks_with(2, {"--expert-model-parallel-size", "2", "--moe-token-dispatcher-type",
                               "alltoall"}));
  expect_the_bits_without_offloading(
      balanced, ranks_with(2, {"--tensor-model-parallel-size", "2", "--sequence-parallel"}));
}

TEST(OffloadedLayersTest, ChangeNoBitOfOtherModels) {
  const FlagWords llama = {"--swiglu", "--disable-bias-linear",     "--normalization",
                           "RMSNorm",  "--position-embedding-type", "rope",
                           "--bf16"};
  expect_the_bits_without_offloading(kDenseModel + llama, ranks_with(1, {}));
  expect_the_bits_without_offloading(kDenseModel + llama + FlagWords{"--mtp-num-layers", "1"},
                                     ranks_with(1, {}));
  expect_the_bits_without_offloading(
      kDenseModel + FlagWords{"--lora-rank", "2", "--lora-target-modules", "all-linear"},
      ranks_with(1, {}));
  expect_the_bits_without_offloading(
      kDenseModel + FlagWords{"--hidden-size", "32", "--ffn-hidden-size", "64", "--bf16",
                              "--fp8-format", "hybrid"},
      ranks_with(2, {"--pipeline-model-parallel-size", "2"}));
}

}  // namespace
}  // namespace megatron::expert_training
