#include "megatron/run/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/settings/training_args.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TrainingArgs gpt_345m(std::vector<std::string> more = {}, int64_t ranks = 1) {
  std::vector<std::string> words = {"--num-layers",
                                    "24",
                                    "--hidden-size",
                                    "1024",
                                    "--lr",
                                    "1e-4",
                                    "--seq-length",
                                    "1024",
                                    "--train-iters",
                                    "10",
                                    "--vocab-size",
                                    "50303",
                                    "--mock-data",
                                    "--bf16",
                                    "--micro-batch-size",
                                    "32",
                                    "--num-attention-heads",
                                    "16",
                                    "--max-position-embeddings",
                                    "1024",
                                    "--tokenizer-type",
                                    "NullTokenizer",
                                    "--pad-vocab-size-to",
                                    "50304",
                                    "--global-batch-size",
                                    "64",
                                    "--hidden-dropout",
                                    "0",
                                    "--attention-dropout",
                                    "0"};
  words.insert(words.end(), more.begin(), more.end());
  return parse_training_args(words, ModelKind::kGpt, ranks);
}

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr Device kGpu{DeviceType::kCuda, 0};

TEST(MemoryCheckTest, SaysWhatIsNeededAndFree) {
  const TrainingArgs args = gpt_345m();
  EXPECT_NO_THROW(expect_to_fit(args, kGpu, 40 * kGibibyte));
  EXPECT_NO_THROW(expect_to_fit(args, kGpu, -1));
  const std::string message =
      message_of<ConfigError>([&] { expect_to_fit(args, kGpu, 20 * kGibibyte); });
  EXPECT_THAT(message, StartsWith("training needs 30."));
  EXPECT_THAT(message, HasSubstr("of cuda:0 at its peak (loss), 20.00 GiB are free"));
  EXPECT_THAT(message, HasSubstr("--skip-memory-check"));
}

TEST(MemoryCheckTest, CanBeOverridden) {
  EXPECT_NO_THROW(expect_to_fit(gpt_345m({"--skip-memory-check"}), kGpu, kGibibyte));
}

TEST(MemoryCheckTest, RemediesAreEnoughByThemselves) {
  EXPECT_THAT(remedies(gpt_345m(), DeviceType::kCuda, 20 * kGibibyte),
              ElementsAre(StartsWith("--micro-batch-size 16 (needs 17."),
                          StartsWith("--recompute-granularity full --recompute-method block "
                                     "--recompute-num-layers ")));
  EXPECT_THAT(remedies(gpt_345m(), DeviceType::kCuda, 28 * kGibibyte),
              Contains(StartsWith("--recompute-granularity selective --recompute-modules layernorm "
                                  "(needs 27.")));
  // The state alone needs 5.3 GiB: nothing here helps.
  EXPECT_THAT(remedies(gpt_345m(), DeviceType::kCuda, 5 * kGibibyte), ElementsAre());
}

// Each of eight ranks has the whole state, 10 bytes of 355 million parameters that they could
// share.
TEST(MemoryCheckTest, OneInstanceIsARemedyForSeveral) {
  const TrainingArgs args = gpt_345m({"--micro-batch-size", "8", "--use-distributed-optimizer",
                                      "--num-distributed-optimizer-instances", "8"},
                                     8);
  const RankMemory memory = rank_memory(planned_training(args, kGpu.type), 0);
  EXPECT_THAT(remedies(args, kGpu.type, memory.total_bytes() - 2 * kGibibyte),
              Contains(StartsWith("--num-distributed-optimizer-instances 1 (needs ")));
}

// 24 inputs of 64 MiB, of which two are on the device at the peak.
TEST(MemoryCheckTest, InputsOnTheHostAreNamedAndTheCpusMemoryIsTheHosts) {
  const std::vector<std::string> recomputed = {"--recompute-granularity", "full",
                                               "--recompute-method",      "uniform",
                                               "--recompute-num-layers",  "1"};
  const RankMemory before = rank_memory(planned_training(gpt_345m(recomputed), kGpu.type), 0);
  EXPECT_THAT(remedies(gpt_345m(recomputed), kGpu.type, before.total_bytes() - kGibibyte),
              Contains(StartsWith("--checkpoint-in-cpu (needs ")));
  std::vector<std::string> words = recomputed;
  words.emplace_back("--checkpoint-in-cpu");
  const TrainingArgs args = gpt_345m(words);
  const RankMemory memory = rank_memory(planned_training(args, kGpu.type), 0);
  EXPECT_EQ(before.total_bytes() - memory.total_bytes(), 22 * (kGibibyte / 16));
  EXPECT_THAT(summary_of(memory),
              Contains("> memory plan: 1.50 GiB of host memory for inputs of recomputed layers"));
  EXPECT_NO_THROW(expect_to_fit(args, kGpu, memory.total_bytes()));

  const Device cpu{DeviceType::kCpu, 0};
  const RankMemory on_cpu = rank_memory(planned_training(args, cpu.type), 0);
  EXPECT_EQ(on_cpu.host_bytes(), memory.host_bytes());
  EXPECT_THROW(expect_to_fit(args, cpu, on_cpu.total_bytes()), ConfigError);
  EXPECT_NO_THROW(expect_to_fit(args, cpu, on_cpu.total_bytes() + on_cpu.host_bytes()));
}

// Bytes that a layer stores between the passes: without what a pass of one layer adds.
int64_t layer_bytes(std::vector<std::string> flags) {
  const auto activations = [&] {
    return rank_memory(planned_training(gpt_345m(flags), DeviceType::kCuda), 0)
        .bytes(MemoryCategory::kActivations);
  };
  const int64_t of_24 = activations();
  flags.insert(flags.end(), {"--num-layers", "12"});
  return (of_24 - activations()) / 12;
}

// The fall for each part, in units of s b h in bf16: 64 MiB.
TEST(MemoryCheckTest, RecomputedPartsFreeTheirMemory) {
  struct Model {
    std::vector<std::string> flags;
    std::vector<std::pair<const char*, double>> parts;
  };
  const std::vector<std::string> llama = {"--swiglu",
                                          "--ffn-hidden-size",
                                          "2816",
                                          "--normalization",
                                          "RMSNorm",
                                          "--disable-bias-linear",
                                          "--position-embedding-type",
                                          "rope"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::string> experts =
      with(llama, {"--num-experts", "8", "--moe-ffn-hidden-size", "512",
                   "--moe-shared-expert-intermediate-size", "1024"});
  // Queries, keys and values of 16 heads of 96 + 32 are 6; the key of 32 stays.
  const std::vector<std::string> latent =
      with(llama, {"--multi-latent-attention", "--q-lora-rank", "512", "--kv-lora-rank", "256",
                   "--qk-head-dim", "96", "--qk-pos-emb-head-dim", "32", "--v-head-dim", "128"});
  const Model models[] = {
      {{}, {{"core_attn", 0}, {"layernorm", 2}, {"activation", 4}, {"mlp", 8}, {"moe", 0}}},
      {llama, {{"layernorm", 2}, {"activation", 2.75}, {"mlp", 3 * 2.75}}},
      {experts, {{"layernorm", 2}, {"moe_act", 0}, {"activation", 1}, {"shared_experts", 3}}},
      {latent, {{"layernorm", 2}, {"mlp", 3 * 2.75}, {"mla_up_proj", 6 - 1.0 / 32}}}};
  for (const Model& model : models) {
    const int64_t all = layer_bytes(model.flags);
    for (const auto& [part, units] : model.parts) {
      const std::vector<std::string> flags =
          with(model.flags, {"--recompute-granularity", "selective", "--recompute-modules", part});
      const double fall = static_cast<double>(all - layer_bytes(flags));
      EXPECT_NEAR(fall / (64 << 20), units, 0.001) << part;
    }
  }
}

TEST(MemoryCheckTest, SummaryHasEveryCategory) {
  const RankMemory memory = rank_memory(planned_training(gpt_345m(), DeviceType::kCuda), 0);
  EXPECT_THAT(summary_of(memory),
              ElementsAre(StartsWith("> memory plan: parameters 678.0 MiB, gradients 1.32 GiB, "
                                     "optimizer 3.31 GiB, activations 24."),
                          StartsWith("> memory plan: 30.")));
}

}  // namespace
}  // namespace megatron
