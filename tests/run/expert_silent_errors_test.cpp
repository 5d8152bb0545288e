// Errors of experts that leave the loss plausible: each was shipped by a training system. Errors of
// the products of experts are in tests/ops/expert_mlp_test.cpp, and
// tests/kernels/cuda/grouped_matmul_test.cpp.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/parallel/shards.h"
#include "tests/run/expert_training.h"
#include "tests/support/tensors.h"

namespace megatron::expert_training {
namespace {

const FlagWords kBalanced = kModel + FlagWords{"--swiglu", "--moe-aux-loss-coeff", "0.1"};

LayoutFlags tensor_ranks(int ranks, int ep, int etp, const FlagWords& more = {}) {
  LayoutFlags layout{.ranks = ranks, .flags = {"--tensor-model-parallel-size", "2"}};
  layout.flags.emplace_back("--sequence-parallel");
  add_flag(layout.flags, "--expert-model-parallel-size", ep);
  add_flag(layout.flags, "--expert-tensor-parallel-size", etp);
  layout.flags = layout.flags + more;
  return layout;
}

// NVIDIA/Megatron-LM PR 5916: the norm left experts out with both sizes above 1, so that clipping
// was too weak.
TEST(ExpertSilentErrorsTest, TheGradientNormHasTheExpertsOfAllRanks) {
  const std::vector<IterationResult> want = train(kBalanced, {}, 2)[0];
  expect_equal_results(train(kBalanced, tensor_ranks(4, 2, 2), 2), want);
  expect_equal_results(train(kBalanced, tensor_ranks(4, 2, 1, {"--zero-stage", "1"}), 2), want);
}

// NVIDIA/Megatron-LM#1628: gradients were summed over the wrong ranks, which drifted apart.
// train() compares the replicas.
TEST(ExpertSilentErrorsTest, ReplicasOfExpertsStayEqualWhereTheirTensorSizeDiffers) {
  FlagWords model = kBalanced;
  *(std::find(model.begin(), model.end(), "--train-iters") + 1) = "20";
  const std::vector<IterationResult> want = train(model, {}, 20)[0];
  const RankResults got = train(model, tensor_ranks(2, 1, 1), 20);
  for (const std::vector<IterationResult>& of_rank : got) {
    EXPECT_NEAR(*of_rank.back().grad_norm, *want.back().grad_norm, 1e-4 * *want.back().grad_norm);
  }
}

// NVIDIA/Megatron-LM PR 7160 and 7165, pytorch/pytorch#160285: gradients of experts had the scale
// of another group of ranks. Adam hides that, gradients do not.
TEST(ExpertSilentErrorsTest, GradientsOfExpertsHaveTheScaleOfDenseOnes) {
  const FlagWords model = kBalanced + FlagWords{"--clip-grad", "0", "--hidden-dropout", "0"};
  std::map<std::string, Tensor> want;
  const CapturedStdout captured_out;
  {
    ExpertTraining run(model, comm::Group(), "");
    run.iterate();
    for (const Parameter& parameter : named_parameters(*run.state().chunks[0])) {
      want[parameter.name] = copied(parameter.variable.grad());
    }
  }
  LayoutFlags data_ranks{.ranks = 4, .flags = {"--expert-model-parallel-size", "2"}};
  LayoutFlags context_ranks{
      .ranks = 4, .flags = {"--context-parallel-size", "2", "--expert-model-parallel-size", "4"}};
  for (const LayoutFlags& layout :
       {data_ranks, context_ranks, tensor_ranks(4, 2, 1), tensor_ranks(4, 1, 2)}) {
    comm::run_ranks(layout.ranks, [&](const comm::Group& world) {
      ExpertTraining run(model + layout.flags, world, "");
      run.iterate();
      for (const Parameter& parameter : named_parameters(*run.state().chunks[0])) {
        expect_close(copied(parameter.variable.grad()),
                     shard_of(want.at(parameter.name), parameter.info.sharding),
                     Tolerance{.relative = 1e-5, .absolute = 1e-6},
                     parameter.name + " on " + layout.text());
      }
    });
  }
}

// NVIDIA/Megatron-LM#7400: products of experts kept old output while ranks exchanged gradients.
TEST(ExpertSilentErrorsTest, OverlapChangesNoBit) {
  const LayoutFlags plain = tensor_ranks(4, 2, 1, {"--zero-stage", "1"});
  LayoutFlags overlapped = plain;
  overlapped.flags =
      overlapped.flags + FlagWords{"--overlap-grad-reduce", "--overlap-param-gather"};
  const RankResults want = train(kBalanced, plain, 4);
  const RankResults got = train(kBalanced, overlapped, 4);
  for (size_t rank = 0; rank < want.size(); ++rank) {
    for (size_t i = 0; i < want[rank].size(); ++i) {
      EXPECT_EQ(*got[rank][i].grad_norm, *want[rank][i].grad_norm) << rank << " " << i;
      EXPECT_EQ(got[rank][i].losses, want[rank][i].losses) << rank << " " << i;
    }
  }
}

// NVIDIA-NeMo/Megatron-Bridge#5634: low-rank adapters were wrong where ranks share an expert.
TEST(ExpertSilentErrorsTest, AdaptersOfSharedExpertsTrainAsOnOneRank) {
  const FlagWords model =
      kBalanced + FlagWords{"--lora-rank", "2", "--lora-target-modules", "all-linear"};
  const std::vector<IterationResult> want = train(model, {}, 5)[0];
  expect_equal_results(train(model, tensor_ranks(2, 1, 2), 5), want);
  expect_equal_results(train(model, tensor_ranks(4, 2, 2), 5), want);
}

// --moe-per-layer-logging counts the tokens of all ranks.
TEST(ExpertLoggingTest, EveryLayoutLogsTheLayersOfOneRank) {
  const FlagWords model = kBalanced + FlagWords{"--moe-per-layer-logging", "--moe-layer-freq",
                                                "[0]*1+[1]*3", "--moe-z-loss-coeff", "0.01"};
  const NamedValues want = train(model, {}, 1)[0][0].of_layers;
  ASSERT_EQ(want.size(), 3 * (2 + 4)) << "layers with two losses and four experts";
  EXPECT_EQ(want[0].first, "moe/load_balancing_loss_layer_1");
  EXPECT_EQ(want[5].first, "moe/load_layer_1_expert_3");
  double sum = 0;
  for (size_t e = 2; e < 6; ++e) sum += want[e].second;
  EXPECT_NEAR(sum, 4, 1e-6);
  const LayoutFlags layout =
      tensor_ranks(8, 2, 1, {"--pipeline-model-parallel-size", "2", "--zero-stage", "1"});
  for (const std::vector<IterationResult>& of_rank : train(model, layout, 1)) {
    const NamedValues& got = of_rank[0].of_layers;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].first, want[i].first);
      EXPECT_NEAR(got[i].second, want[i].second, 2e-6) << want[i].first;
    }
  }
}

}  // namespace
}  // namespace megatron::expert_training
