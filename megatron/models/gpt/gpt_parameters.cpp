#include "megatron/models/gpt/gpt_parameters.h"

#include <string>
#include <utility>

namespace megatron {
namespace {

// Collects specs under a common beginning of the names.
class Catalogue {
 public:
  explicit Catalogue(const TransformerConfig& config) : config_(config) {}

  void add(const std::string& name, const Shape& shape) {
    specs_.push_back({name, config_.params_dtype, shape});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {config_.hidden_size});
    if (config_.normalization == Normalization::kLayerNorm) {
      add(name + ".bias", {config_.hidden_size});
    }
  }
  void add_linear(const std::string& name, int64_t in, int64_t out, bool has_bias) {
    add(name + ".weight", {out, in});
    if (has_bias) add(name + ".bias", {out});
  }
  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  const TransformerConfig& config_;
  std::vector<TensorSpec> specs_;
};

void add_layer(Catalogue& catalogue, const std::string& layer, const TransformerConfig& config) {
  const int64_t h = config.hidden_size;
  const int64_t f = config.ffn_hidden_size;
  const int64_t d = config.kv_channels;
  const int64_t heads = config.num_attention_heads;
  catalogue.add_norm(layer + "input_layernorm");
  catalogue.add_linear(layer + "self_attention.linear_qkv", h,
                       (heads + 2 * config.num_query_groups) * d, config.has_qkv_bias());
  if (config.qk_layernorm) {
    for (const char* norm : {"q_layernorm", "k_layernorm"}) {
      catalogue.add(layer + "self_attention." + norm + ".weight", {d});
      if (config.normalization == Normalization::kLayerNorm) {
        catalogue.add(layer + "self_attention." + norm + ".bias", {d});
      }
    }
  }
  catalogue.add_linear(layer + "self_attention.linear_proj", heads * d, h, config.add_bias_linear);
  catalogue.add_norm(layer + "pre_mlp_layernorm");
  catalogue.add_linear(layer + "mlp.linear_fc1", h, config.is_gated() ? 2 * f : f,
                       config.add_bias_linear);
  catalogue.add_linear(layer + "mlp.linear_fc2", f, h, config.add_bias_linear);
}

}  // namespace

std::vector<TensorSpec> gpt_parameters(const TransformerConfig& config) {
  const Shape table = {config.padded_vocab_size, config.hidden_size};
  Catalogue catalogue(config);
  catalogue.add("embedding.word_embeddings.weight", table);
  if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    catalogue.add("embedding.position_embeddings.weight",
                  {config.max_position_embeddings, config.hidden_size});
  }
  if (config.embed_layernorm) catalogue.add_norm("embedding.norm");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    add_layer(catalogue, "decoder.layers." + std::to_string(layer) + ".", config);
  }
  catalogue.add_norm("decoder.final_layernorm");
  if (config.untie_embeddings_and_output_weights) catalogue.add("output_layer.weight", table);
  return catalogue.take();
}

}  // namespace megatron
