#include "megatron/inference/text_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/staging.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/router.h"

namespace megatron {
namespace {

kernels::DecodeTextShape shape_of(const TransformerConfig& c, int64_t page_tokens) {
  return {.dtype = c.params_dtype,
          .layers = c.num_layers,
          .hidden = c.hidden_size,
          .ffn = c.has_experts() ? c.moe_ffn_hidden_size : c.ffn_hidden_size,
          .heads = c.num_attention_heads,
          .groups = c.num_query_groups,
          .d = c.kv_channels,
          .vocabulary = c.padded_vocab_size,
          .experts = c.num_experts,
          .topk = c.has_experts() ? c.moe_router_topk : 0,
          .router = router_options(c),
          .rounds_router = c.moe_router_dtype.value_or(c.params_dtype) == c.params_dtype,
          .weighs_input = c.moe_apply_probs_on_input,
          .activation = c.activation,
          .is_rms_norm = c.normalization == Normalization::kRmsNorm,
          .one_plus_weight = c.apply_layernorm_1p,
          .epsilon = static_cast<float>(c.norm_epsilon),
          .scale = c.softmax_scale > 0 ? static_cast<float>(c.softmax_scale)
                                       : 1 / std::sqrt(static_cast<float>(c.kv_channels)),
          .page_tokens = page_tokens};
}

// True if kernels::decode_text computes such experts, or there are none.
bool has_plain_experts(const TransformerConfig& c) {
  if (!c.has_experts()) return true;
  const DType router = c.moe_router_dtype.value_or(c.params_dtype);
  return std::ranges::all_of(c.moe_layer_freq, [](int one) { return one != 0; }) &&
         !c.add_bias_linear && c.moe_shared_expert_intermediate_size == 0 &&
         (router == c.params_dtype || router == DType::kFloat32) && !c.moe_legacy_router &&
         !balances_by(c, "quantile_balancing");
}

// True if kernels::decode_text computes such layers.
bool has_plain_layers(const TransformerConfig& c) {
  return c.position_embedding_type != PositionEmbedding::kAlibi &&
         c.position_embedding_type != PositionEmbedding::kRelative &&
         !c.qk_layernorm_of_projection && !c.qk_layernorm_weight_per_head && !c.parallel_residual &&
         !c.apply_residual_connection_post_layernorm &&
         c.norm_placement == NormPlacement::kBefore && c.add_norm_bias &&
         c.residual_multiplier == 1 && c.logits_multiplier == 1 && c.final_logit_softcapping == 0 &&
         !c.add_output_bias && c.no_rope_layers.empty() && c.rotary_base_local == 0 &&
         !c.fp32_residual_connection && c.lora_rank == 0 && c.attention_window == 0 &&
         c.attn_logit_softcapping == 0 && c.softmax_type == SoftmaxType::kVanilla &&
         !c.attention_output_gate && !c.multi_latent_attention && has_plain_experts(c);
}

bool has_whole_layers(const ParallelContext& parallel) {
  const auto& experts = parallel.tensor.experts;
  return parallel.model.size() == 1 &&
         (experts == nullptr || experts->experts.size() * experts->shares.size() == 1);
}

bool has_rounded_weights(const GptModel& model) {
  const auto layers = modules_of<ColumnParallelLinear>(model);
  return std::any_of(layers.begin(), layers.end(),
                     [](const auto* layer) { return layer->has_rounded_weight(); });
}

}  // namespace

bool TextStep::takes(const InferenceModel& model, const KvCache& cache) {
  return model.gpt != nullptr && has_whole_layers(model.parallel) &&
         cache.type() == KvCacheType::kModel && has_plain_layers(model.config()) &&
         !has_rounded_weights(*model.gpt) &&
         kernels::has_decode_text(shape_of(model.config(), cache.page_tokens()),
                                  model.stream().device);
}

TextStep::TextStep(const InferenceModel& model, KvCache& cache) : model_(model) {
  const TransformerConfig& config = model.config();
  std::map<std::string, const void*> parameters;
  for (const Parameter& parameter : named_tensors(*model.gpt)) {
    parameters[parameter.name] = std::as_const(parameter.variable).data().view().data;
  }
  const auto find = [&](const std::string& name) -> const void* {
    const auto found = parameters.find(name);
    return found == parameters.end() ? nullptr : found->second;
  };
  const std::string mlp = config.has_experts() ? "mlp.experts." : "mlp.";
  std::vector<kernels::DecodeTextLayer> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    PagedStore& store = cache.layer(i);
    layers.push_back(
        {.input_norm_weight = find(layer + "input_layernorm.weight"),
         .input_norm_bias = find(layer + "input_layernorm.bias"),
         .qkv_weight = find(layer + "self_attention.linear_qkv.weight"),
         .qkv_bias = find(layer + "self_attention.linear_qkv.bias"),
         .q_norm_weight = find(layer + "self_attention.q_layernorm.weight"),
         .q_norm_bias = find(layer + "self_attention.q_layernorm.bias"),
         .k_norm_weight = find(layer + "self_attention.k_layernorm.weight"),
         .k_norm_bias = find(layer + "self_attention.k_layernorm.bias"),
         .proj_weight = find(layer + "self_attention.linear_proj.weight"),
         .proj_bias = find(layer + "self_attention.linear_proj.bias"),
         .mlp_norm_weight = find(layer + "pre_mlp_layernorm.weight"),
         .mlp_norm_bias = find(layer + "pre_mlp_layernorm.bias"),
         .router_weight = find(layer + "mlp.router.weight"),
         .expert_bias = static_cast<const float*>(find(layer + "mlp.router.expert_bias")),
         .fc1_weight = find(layer + mlp + "linear_fc1.weight"),
         .fc1_bias = find(layer + mlp + "linear_fc1.bias"),
         .fc2_weight = find(layer + mlp + "linear_fc2.weight"),
         .fc2_bias = find(layer + mlp + "linear_fc2.bias"),
         .keys = store.keys.view().data,
         .values = store.values.view().data});
  }
  const Stream stream = model.stream();
  const auto bytes = static_cast<int64_t>(layers.size() * sizeof(kernels::DecodeTextLayer));
  layers_ = Tensor({bytes}, DType::kUInt8, stream);
  upload_bytes(layers_.view().data, layers.data(), bytes, stream);
  text_ = {.shape = shape_of(config, cache.page_tokens()),
           .layers = std::as_const(layers_).view(),
           .final_norm_weight = find("decoder.final_layernorm.weight"),
           .final_norm_bias = find("decoder.final_layernorm.bias"),
           .head_weight = config.untie_embeddings_and_output_weights
                              ? find("output_layer.weight")
                              : find("embedding.word_embeddings.weight"),
           .rotary_pairs = config.rotary_interleaved ? kernels::RotaryPairs::kInterleaved
                                                     : kernels::RotaryPairs::kHalves};
  const Tensor& table = model.gpt->rotary_angles();
  if (table.defined()) text_.rotary_table = table.view();
  workspace_ = zeros({kernels::decode_text_workspace_bytes(text_.shape)}, DType::kUInt8, stream);
}

Tensor TextStep::logits(const Tensor& ids, const Tensor& positions, const Tensor& pages,
                        const Tensor& length, int64_t max_length) {
  RandomState random(0);
  random.set_training(false);
  const Variable x = model_.gpt->embed(
      {.tokens = RowIds(ids, Tensor()), .position_ids = RowIds(positions, Tensor())}, random);
  Tensor logits({1, 1, text_.shape.vocabulary}, text_.shape.dtype, model_.stream());
  kernels::decode_text(logits.reshape({text_.shape.vocabulary}).view(),
                       x.data().reshape({text_.shape.hidden}).view(), text_, pages.view(),
                       length.view(), max_length, workspace_.view(), model_.stream());
  return logits;
}

}  // namespace megatron
