#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"
#include "megatron/interchange/hf/rope.h"

namespace megatron {
namespace {

constexpr HfActivation kStarcoder2Activations[] = {{"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                   {"gelu_new", Activation::kGeluTanh},
                                                   {"gelu_fast", Activation::kGeluTanh},
                                                   {"gelu", Activation::kGeluErf},
                                                   {"relu", Activation::kRelu}};

void bind_starcoder2(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  bind_hf_key_value_heads(f, c, "num_key_value_heads", 2);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings);
  bind_hf_rope(f, c);
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("norm_epsilon", c.norm_epsilon, 1e-5);
  f.activation("hidden_act", c.activation, kStarcoder2Activations, "gelu_pytorch_tanh");
  f.flag("use_bias", c.add_bias_linear, true);
  f.number("attention_dropout", c.attention_dropout, 0.0);
  bind_hf_common_dropout(f, c, "residual_dropout", "embedding_dropout", 0.0);
  f.opposite("tie_word_embeddings", c.untie_embeddings_and_output_weights, true);
  bind_hf_window(f, c, 0);
  static constexpr const char* kUnused[] = {"mlp_type", "norm_type"};
  f.ignore(kUnused);
}

constexpr NameRule kStarcoder2Own[] = {
    {"decoder.layers.{i}.input_layernorm.bias", {"model.layers.{i}.input_layernorm.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"model.layers.{i}.post_attention_layernorm.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"model.layers.{i}.mlp.c_fc.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"model.layers.{i}.mlp.c_fc.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"model.layers.{i}.mlp.c_proj.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"model.layers.{i}.mlp.c_proj.bias"}},
    {"decoder.final_layernorm.bias", {"model.norm.bias"}},
};

NameTable starcoder2_names(const TransformerConfig& /*config*/) {
  return hf_llama_names(kStarcoder2Own);
}

}  // namespace

const HfFamily kHfStarcoder2 = {.model_type = "starcoder2",
                                .architecture = "Starcoder2ForCausalLM",
                                .bind = bind_starcoder2,
                                .names = starcoder2_names};

}  // namespace megatron
