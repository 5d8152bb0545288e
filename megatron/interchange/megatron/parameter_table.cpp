#include "megatron/interchange/megatron/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/model_specs.h"

namespace megatron {
namespace {

// The neighbours' encoder of a Retro: all layers after the first are alike.
constexpr int64_t kEncoderLayers = 2;

// The name that stands for those of all layers.
std::string table_name(std::string_view name) {
  std::optional<int64_t> layer;
  std::string pattern = without_layer(name, layer);
  constexpr std::string_view kEncoder = ".cross_attention.encoder.layers.";
  const size_t at = pattern.find(kEncoder);
  if (at == std::string::npos) return pattern;
  const size_t begin = at + kEncoder.size();
  const size_t end = std::min(pattern.find('.', begin), pattern.size());
  if (pattern.substr(begin, end - begin) != "0") pattern.replace(begin, end - begin, "1");
  return pattern;
}

}  // namespace

ParameterTable::ParameterTable(const std::vector<Parameter>& parameters) {
  for (const Parameter& one : parameters) infos_[table_name(one.name)] = one.info;
}

const ParameterInfo& ParameterTable::at(std::string_view name) const {
  const auto found = infos_.find(table_name(name));
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
  config.norm_placement = NormPlacement::kBoth;
  config.embed_layernorm = is_decoder_only(kind);
  config.add_output_bias = is_decoder_only(kind);
  if (is_decoder_only(kind)) config.softmax_type = SoftmaxType::kLearnable;
  config.untie_embeddings_and_output_weights = is_decoder_only(kind);
  if (is_gated) config.activation = Activation::kSwiglu;
  config = resolved(config);
  config.padded_vocab_size = 1;
  std::vector<Parameter> specs = model_specs(config);
  if (is_decoder_only(kind)) {
    TransformerConfig latent = config;
    latent.position_embedding_type = PositionEmbedding::kRope;
    latent.multi_latent_attention = true;
    latent.kv_lora_rank = 1;
    latent.qk_head_dim = latent.qk_pos_emb_head_dim = latent.v_head_dim = 2;
    latent.mtp_num_layers = 1;
    for (latent.q_lora_rank = 0; latent.q_lora_rank < 2; ++latent.q_lora_rank) {
      for (Parameter& spec : model_specs(resolved(latent))) specs.push_back(std::move(spec));
    }
    TransformerConfig further = config;
    further.mtp_num_layers = 1;
    for (Parameter& spec : model_specs(further)) specs.push_back(std::move(spec));
  }
  if (is_decoder_only(kind)) {  // experts and a Retro have more
    TransformerConfig experts = config;
    experts.mtp_num_layers = 1;
    experts.num_experts = 2;
    experts.moe_shared_expert_intermediate_size = 2;
    experts.moe_shared_expert_gate = true;
    experts.moe_router_score_function = RouterScore::kSigmoid;
    experts.moe_router_enable_expert_bias = true;
    for (Parameter& spec : model_specs(resolved(experts))) specs.push_back(std::move(spec));
    config.retro = {.add_retriever = true, .layer_numbers = {1}, .encoder_layers = kEncoderLayers};
    for (Parameter& spec : model_specs(config)) specs.push_back(std::move(spec));
  }
  if (is_encoder_decoder(kind)) {  // a tied model has a bias, another a matrix
    config.untie_embeddings_and_output_weights = true;
    for (Parameter& spec : model_specs(config)) specs.push_back(std::move(spec));
  }
  return ParameterTable(specs);
}

}  // namespace megatron
