#include "megatron/interchange/megatron/parameter_table.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/model_specs.h"

namespace megatron {

ParameterTable::ParameterTable(const std::vector<ParameterSpec>& specs) {
  std::optional<int64_t> layer;
  for (const ParameterSpec& spec : specs) infos_[without_layer(spec.name, layer)] = spec.info;
}

const ParameterInfo& ParameterTable::at(std::string_view name) const {
  std::optional<int64_t> layer;
  const auto found = infos_.find(without_layer(name, layer));
  if (found != infos_.end()) return found->second;
  throw Unsupported(fmt::format("no option of the model makes a parameter {}", name));
}

ParameterTable parameter_table(ModelKind kind, bool is_gated) {
  TransformerConfig config;
  config.kind = kind;
  config.num_layers = config.decoder_num_layers = 1;
  config.hidden_size = 2;
  config.num_attention_heads = 1;
  config.seq_length = config.max_position_embeddings = 1;
  config.qk_layernorm = true;
  config.embed_layernorm = kind == ModelKind::kGpt;
  config.untie_embeddings_and_output_weights = kind == ModelKind::kGpt;
  if (is_gated) config.activation = Activation::kSwiglu;
  config = resolved(config);
  config.padded_vocab_size = 1;
  std::vector<ParameterSpec> specs = model_specs(config);
  if (kind == ModelKind::kT5) {  // a tied model has a bias, another a matrix
    config.untie_embeddings_and_output_weights = true;
    for (ParameterSpec& spec : model_specs(config)) specs.push_back(std::move(spec));
  }
  return ParameterTable(specs);
}

}  // namespace megatron
