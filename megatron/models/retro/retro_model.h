#pragma once

#include "megatron/models/gpt/gpt_model.h"

namespace megatron {

// A Retro (transformer/retro_config.h): a GPT, whole, whose layers in config.retro attend to the
// neighbours of ModelInput. Without neighbours it computes as the GPT.
class RetroModel final : public GptModel {
 public:
  // As GptModel.
  RetroModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
             Stream stream);
  RetroModel(const TransformerConfig& config, Stream stream);

 private:
  std::unique_ptr<ModelContext> model_context(const ModelInput& input, RandomState& random,
                                              const CachedBatch* cached) const override;

  uint64_t neighbor_embedding_site_;
};

}  // namespace megatron
