#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/parallel/tensor/lora.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// The linear layers of a transformer layer that may have an adapter. Latent attention has the last
// five in place of linear_qkv.
inline constexpr const char* kLoraLayers[] = {
    "linear_qkv",       "linear_proj",         "linear_fc1",
    "linear_fc2",       "linear_q_proj",       "linear_q_down_proj",
    "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"};
// Names of the layers of a model that take adapters.
std::vector<std::string> lora_layers(const LayerConfig& config);

// The layers that a word of --lora-target-modules selects: ours, that of a layer in transformers
// ("c_attn", "q_proj"), or all-linear; linear_qkv also means the layers in its place. Empty for an
// unknown name.
std::vector<std::string> lora_layers_of(std::string_view name);

// The adapter of a layer; rank 0 if it has none.
LoraOptions lora_of(const AdapterConfig& config, std::string_view layer);

// The dropout of the input of a linear layer's adapter (--lora-dropout).
class LoraDropout {
 public:
  // `layer` is the name of the linear layer in the model.
  LoraDropout(const AdapterConfig& config, const std::string& layer);

  // The key for x [s, b, in] of a column-parallel layer, [s/tp, b, in] with sequence parallelism.
  DropoutKey of_columns(const Variable& x, const TensorParallel& tp,
                        const ForwardContext& context) const;
  // The key for x [s, b, in/tp] of a row-parallel layer.
  DropoutKey of_rows(const Variable& x, const ForwardContext& context) const;

 private:
  float probability_;
  uint64_t site_;
};

}  // namespace megatron
