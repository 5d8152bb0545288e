#include "megatron/transformer/lora.h"

#include <algorithm>
#include <iterator>

#include "megatron/parallel/context/sequence.h"

namespace megatron {
namespace {

struct OtherName {
  std::string_view name;
  const char* layer;
};
// Names in transformers, and linear_qkv for latent attention. One name may stand for several
// layers.
constexpr OtherName kOtherNames[] = {
    {"c_attn", "linear_qkv"},
    {"query_key_value", "linear_qkv"},
    {"q_proj", "linear_qkv"},
    {"k_proj", "linear_qkv"},
    {"v_proj", "linear_qkv"},
    {"c_proj", "linear_proj"},
    {"attn.c_proj", "linear_proj"},
    {"o_proj", "linear_proj"},
    {"dense", "linear_proj"},
    {"c_fc", "linear_fc1"},
    {"gate_proj", "linear_fc1"},
    {"up_proj", "linear_fc1"},
    {"dense_h_to_4h", "linear_fc1"},
    {"c_proj", "linear_fc2"},
    {"mlp.c_proj", "linear_fc2"},
    {"down_proj", "linear_fc2"},
    {"dense_4h_to_h", "linear_fc2"},
    {"q_proj", "linear_q_proj"},
    {"q_a_proj", "linear_q_down_proj"},
    {"q_b_proj", "linear_q_up_proj"},
    {"kv_a_proj_with_mqa", "linear_kv_down_proj"},
    {"kv_b_proj", "linear_kv_up_proj"},
    {"linear_qkv", "linear_q_proj"},
    {"linear_qkv", "linear_q_down_proj"},
    {"linear_qkv", "linear_q_up_proj"},
    {"linear_qkv", "linear_kv_down_proj"},
    {"linear_qkv", "linear_kv_up_proj"},
};

}  // namespace

std::vector<std::string> lora_layers(const LayerConfig& config) {
  if (!config.multi_latent_attention) {
    return {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  }
  std::vector<std::string> layers = {"linear_kv_down_proj", "linear_kv_up_proj", "linear_proj",
                                     "linear_fc1", "linear_fc2"};
  if (config.q_lora_rank == 0) {
    layers.insert(layers.begin(), "linear_q_proj");
  } else {
    layers.insert(layers.begin(), {"linear_q_down_proj", "linear_q_up_proj"});
  }
  return layers;
}

std::vector<std::string> lora_layers_of(std::string_view name) {
  if (name == "all-linear") return {std::begin(kLoraLayers), std::end(kLoraLayers)};
  std::vector<std::string> layers;
  for (const char* layer : kLoraLayers) {
    if (name == layer) layers.emplace_back(layer);
  }
  for (const OtherName& other : kOtherNames) {
    if (name == other.name) layers.emplace_back(other.layer);
  }
  return layers;
}

LoraOptions lora_of(const AdapterConfig& config, std::string_view layer) {
  if (config.lora_rank == 0) return {};
  for (const std::string& name : config.lora_target_modules) {
    if (std::ranges::count(lora_layers_of(name), layer) == 0) continue;
    return {.rank = config.lora_rank,
            .scale = config.lora_alpha / static_cast<double>(config.lora_rank)};
  }
  return {};
}

LoraDropout::LoraDropout(const AdapterConfig& config, const std::string& layer)
    : probability_(static_cast<float>(config.lora_dropout)),
      site_(hash_of(layer + ".adapter.dropout")) {}

DropoutKey LoraDropout::of_columns(const Variable& x, const TensorParallel& tp,
                                   const ForwardContext& context) const {
  return megatron::of_rows(context.random->dropout_key(site_, probability_), x.size(0), tp,
                           context.context_parallel);
}

DropoutKey LoraDropout::of_rows(const Variable& x, const ForwardContext& context) const {
  return of_columns(x, {}, context);
}

}  // namespace megatron
