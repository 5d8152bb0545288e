#include "megatron/run/cheapest_recomputation.h"

#include <gtest/gtest.h>

#include "megatron/run/memory_check.h"
#include "megatron/settings/training_args.h"

namespace megatron {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

std::string fitting_flags(const std::vector<std::string>& more, int64_t bytes) {
  std::vector<std::string> words = {"--num-layers",
                                    "24",
                                    "--hidden-size",
                                    "1024",
                                    "--num-attention-heads",
                                    "16",
                                    "--seq-length",
                                    "1024",
                                    "--max-position-embeddings",
                                    "1024",
                                    "--lr",
                                    "1e-4",
                                    "--train-iters",
                                    "10",
                                    "--vocab-size",
                                    "50303",
                                    "--pad-vocab-size-to",
                                    "50304",
                                    "--mock-data",
                                    "--bf16",
                                    "--micro-batch-size",
                                    "32",
                                    "--global-batch-size",
                                    "64",
                                    "--tokenizer-type",
                                    "NullTokenizer"};
  words.insert(words.end(), more.begin(), more.end());
  const TrainingArgs args = parse_training_args(words, ModelKind::kGpt, 1);
  const std::optional<RecomputeConfig> way = cheapest_recomputation(args, DeviceType::kCuda, bytes);
  if (!way) return "none";
  TrainingArgs changed = args;
  static_cast<RecomputeConfig&>(changed.transformer) = *way;
  EXPECT_LE(largest_rank_memory(planned_training(changed, DeviceType::kCuda)).total_bytes(), bytes);
  return recompute_flags(*way);
}

// 30.0 GiB without recomputation, of which norms are 3, activations 6, MLPs 12 or a little less.
TEST(CheapestRecomputationTest, TakesMoreTimeOnlyForMoreMemory) {
  const std::string selective = "--recompute-granularity selective --recompute-modules ";
  EXPECT_EQ(fitting_flags({}, 31 * kGib), "");
  EXPECT_EQ(fitting_flags({}, 28 * kGib), selective + "layernorm");
  EXPECT_EQ(fitting_flags({}, 25 * kGib), selective + "activation");
  EXPECT_EQ(fitting_flags({}, 22 * kGib), selective + "layernorm activation");
  EXPECT_EQ(fitting_flags({}, 16 * kGib), selective + "layernorm mlp");
  EXPECT_EQ(fitting_flags({}, 9 * kGib),
            "--recompute-granularity full --recompute-method block --recompute-num-layers 23");
  EXPECT_EQ(fitting_flags({}, 5 * kGib), "none");
}

TEST(CheapestRecomputationTest, TakesOnlyPartsThatTheModelHas) {
  const std::vector<std::string> experts = {
      "--num-experts", "8", "--moe-ffn-hidden-size", "256", "--disable-bias-linear", "--swiglu"};
  const std::string flags = fitting_flags(experts, 38 * kGib);
  EXPECT_EQ(flags.find("activation"), std::string::npos) << flags;
  EXPECT_EQ(flags.find("mlp"), std::string::npos) << flags;
}

}  // namespace
}  // namespace megatron
