#include "megatron/models/retro/retro_model.h"
#include "tests/models/gpt/small_config.h"
#include "tests/models/plan_trial.h"

// The plan of a Retro against what the allocator counted.
namespace megatron {
namespace {

TEST(RetroPlanTest, IsWhatTrainingTakes) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  for (const int64_t neighbors : {1, 2}) {
    TransformerConfig config = small_config(4);
    config.retro = {.add_retriever = true,
                    .layer_numbers = {2, 4},
                    .chunk_length = 16,
                    .num_neighbors = neighbors,
                    .encoder_hidden_dropout = 0,
                    .encoder_attention_dropout = 0};
    config = resolved(config);
    constexpr int64_t kBatch = 2;
    const PlanTrial trial = plan_trial<RetroModel>(
        config, kBatch, [&](const RetroModel& model, RandomState& random, const Tensor& seed) {
          const Tensor ids = planned_ids(config, kBatch);
          const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
          const int64_t r = config.retro.neighbor_length();
          const int64_t rows = kBatch * config.retro.neighbor_tokens(config.seq_length) / r;
          const Tensor others =
              tensor_of(std::vector<int64_t>(static_cast<size_t>(rows * r), 5), {rows, r});
          const Variable hidden =
              model.hidden_states({.tokens = ids, .neighbor_tokens = others}, random);
          return std::vector<Variable>{
              token_loss(model, hidden, {.labels = ids, .loss_mask = mask, .seed = seed})};
        });
    trial.expect_within(0.03);
  }
}

}  // namespace
}  // namespace megatron
