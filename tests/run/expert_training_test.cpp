// GPT models with experts on random layouts of ranks: they train, and go on from the checkpoints of
// other layouts, as one rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/run/expert_training.h"
#include "tests/support/temporary_directory.h"

namespace megatron::expert_training {
namespace {

// Three kinds of routers and experts.
const FlagWords kExpertKinds[] = {
    {"--moe-router-load-balancing-type", "aux_loss", "seq_aux_loss", "--moe-aux-loss-coeff", "0.1",
     "0.05", "--moe-z-loss-coeff", "0.01", "--swiglu", "--disable-bias-linear",
     "--moe-shared-expert-intermediate-size", "8", "--moe-shared-expert-gate"},
    {"--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
     "--moe-router-bias-update-rate", "0.05", "--moe-layer-freq", "[0]*1+[1]*3",
     "--moe-router-num-groups", "2", "--moe-router-group-topk", "1",
     "--moe-router-load-balancing-type", "seq_aux_loss", "--moe-aux-loss-coeff", "0.1", "--swiglu"},
    {"--moe-router-pre-softmax", "--moe-router-topk", "1", "--moe-apply-probs-on-input",
     "--moe-input-jitter-eps", "0.1", "--moe-aux-loss-coeff", "0.1"}};

// A layout of up to eight ranks.
LayoutFlags random_layout(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<int> numbers) {
    return *(numbers.begin() + random() % numbers.size());
  };
  while (true) {
    const int tp = one_of({1, 2});
    const int pp = one_of({1, 1, 2});
    const int cp = one_of({1, 1, 2});
    const int dp = one_of({1, 2, 4});
    const int ep = one_of({1, 2, 2, 4});
    const int etp = one_of({1, 2});
    const int ranks = tp * pp * cp * dp;
    const int of_stage = tp * cp * dp;
    if (ranks == 1 || ranks > 8 || of_stage % (ep * etp) != 0) continue;
    LayoutFlags layout{.ranks = ranks};
    const auto add = [&](const char* flag, int value) { add_flag(layout.flags, flag, value); };
    add("--tensor-model-parallel-size", tp);
    add("--pipeline-model-parallel-size", pp);
    add("--context-parallel-size", cp);
    add("--expert-model-parallel-size", ep);
    add("--expert-tensor-parallel-size", etp);
    if (tp > 1) layout.flags.emplace_back("--sequence-parallel");
    if (pp > 1 && 8 / dp % pp == 0 && one_of({0, 1}) == 1) {
      add("--num-layers-per-virtual-pipeline-stage", 1);
    }
    add("--zero-stage", pp > 1 ? one_of({0, 1}) : one_of({0, 1, 2, 3}));
    if (one_of({0, 1}) == 1) layout.flags.emplace_back("--overlap-grad-reduce");
    if (one_of({0, 0, 1}) == 1) {
      layout.flags = layout.flags + FlagWords{"--recompute-granularity", "full",
                                              "--recompute-method",      "uniform",
                                              "--recompute-num-layers",  "1"};
    }
    return layout;
  }
}

class ExpertTrainingTest : public testing::TestWithParam<size_t> {};

// Two iterations in one layout, three more in another.
TEST_P(ExpertTrainingTest, EveryLayoutTrainsAsOneRank) {
  const FlagWords model = kModel + kExpertKinds[GetParam()];
  const std::vector<IterationResult> want = train(model, {}, 5)[0];
  // More by hand: the layouts of other seeds.
  const char* const seed = std::getenv("MG_LAYOUT_SEED");
  std::mt19937 random(seed != nullptr ? static_cast<uint32_t>(std::atoi(seed)) : 11);
  const char* const count = std::getenv("MG_LAYOUTS");
  for (int i = 0; i < (count != nullptr ? std::atoi(count) : 3); ++i) {
    const LayoutFlags first = random_layout(random);
    const LayoutFlags second = random_layout(random);
    // Our own checkpoints and Megatron Core's, in turn.
    constexpr const char* kFormats[] = {"native", "torch_dist", "megatron-core"};
    const FlagWords format = {"--save-format", kFormats[i % 3]};
    SCOPED_TRACE(first.text() + "\nthen " + second.text() + "\nby " + format[1]);
    const TemporaryDirectory directory;
    expect_equal_results(train(model + format, first, 2, "", directory.path().string()), want, 0);
    expect_equal_results(train(model, second, 3, directory.path().string()), want, 2);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExpertTrainingTest, testing::Values(0U, 1U, 2U));

}  // namespace
}  // namespace megatron::expert_training
