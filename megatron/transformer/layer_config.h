#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/router_score.h"
#include "megatron/nn/fp8_config.h"

// The settings of a layer, one struct for each part. Names are Megatron's flag names without the
// dashes.
namespace megatron {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kAlibi, kRelative, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };
// The norms of a branch: x + f(norm(x)), x + norm(f(x)) (OLMo 2), x + norm(f(norm(x))) (Gemma 2).
enum class NormPlacement { kBefore, kAfter, kBoth };
// The denominator of the softmax has one more term, exp(0) or exp(a parameter of the head), which
// takes probability and adds nothing to the output.
enum class SoftmaxType { kVanilla, kOffByOne, kLearnable };
// Linear: positions divided by the factor. Llama 3: only low frequencies. YaRN: arXiv:2309.00071.
// Dynamic: a base that grows with the sequence. LongRoPE: arXiv:2402.13753.
enum class RopeScalingType { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

struct AttentionConfig {
  int64_t num_attention_heads = 0;     // required
  int64_t kv_channels = 0;             // size of one head; 0: hidden_size / num_attention_heads
  bool group_query_attention = false;  // heads share keys and values in num_query_groups groups
  int64_t num_query_groups = 1;        // resolved: num_attention_heads without the switch above
  bool add_qkv_bias = false;           // bias of the QKV projection when the others have none
  bool qk_layernorm = false;           // normalize queries and keys per head, before rotation
  double softmax_scale = 0.0;          // of attention scores; 0: kv_channels^-0.5
  double attention_dropout = 0.1;      // probability in [0, 1)
  bool apply_query_key_layer_scaling = false;  // keeps fp16 scores small; softmax then in fp32
  bool attention_softmax_in_fp32 = false;
  // A token sees itself and the attention_window - 1 tokens before it; 0: all before it.
  int64_t attention_window = 0;
  double attn_logit_softcapping = 0.0;  // scores become c tanh(score / c); 0: they stay
  SoftmaxType softmax_type = SoftmaxType::kVanilla;
  // qk_layernorm is of the whole projection of queries, and of keys, not of each head (OLMo 2).
  bool qk_layernorm_of_projection = false;
  bool qk_layernorm_weight_per_head = false;  // qk_layernorm has a weight for each head (Cohere)
  bool attention_output_gate = false;  // the heads' outputs are multiplied by sigmoid(a projection)

  // Groups of keys and values that a tensor-parallel rank has: one, shared with other ranks, where
  // there are more ranks than groups.
  int64_t query_groups_of_rank(int64_t tensor_parallel_size) const {
    return num_query_groups > tensor_parallel_size ? num_query_groups / tensor_parallel_size : 1;
  }
};

struct FeedForwardConfig {
  int64_t ffn_hidden_size = 0;  // 0: 4 * hidden_size, with swiglu 2/3 of it (see resolved)
  Activation activation = Activation::kGeluTanh;

  bool is_gated() const { return megatron::is_gated(activation); }
};

// Latent attention (DeepSeek-V2, arXiv:2405.04434): queries, keys and values are projected up from
// short vectors.
struct LatentConfig {
  bool multi_latent_attention = false;
  int64_t q_lora_rank = 0;           // 0: queries are projected from the hidden state
  int64_t kv_lora_rank = 32;         // size of the latent of keys and values
  int64_t qk_head_dim = 128;         // of a head of queries and keys, without position
  int64_t qk_pos_emb_head_dim = 64;  // the rotated part, which the heads' keys share
  int64_t v_head_dim = 128;
};

enum class TokenDropPolicy { kProbs, kPosition };

// Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router sends each token to
// moe_router_topk of num_experts MLPs.
struct ExpertConfig {
  int64_t num_experts = 0;  // 0: none
  // By layer: 1 if it has experts. A single number n: every n-th layer, from the first on.
  std::vector<int> moe_layer_freq;  // resolved: empty if all have
  int64_t moe_ffn_hidden_size = 0;  // width of an expert; 0: ffn_hidden_size
  int64_t moe_router_topk = 2;
  RouterScore moe_router_score_function = RouterScore::kSoftmax;
  bool moe_router_pre_softmax = false;  // softmax over all experts before the choice, not after
  int64_t moe_router_num_groups = 0;    // blocks of experts; 0: none
  int64_t moe_router_group_topk = 0;    // blocks that a token may choose from
  // Experts whose scores add up to a block's; 0: moe_router_topk / moe_router_group_topk.
  int64_t moe_router_group_score_topk = 0;
  double moe_router_topk_scaling_factor = 0.0;  // of the weights; 0: none
  std::optional<DType> moe_router_dtype;        // of logits and weights; none: the input's
  bool moe_router_enable_expert_bias = false;   // balancing without a loss (arXiv:2408.15664)
  double moe_router_bias_update_rate = 1e-3;
  double moe_router_quantile_balancing_ema = 0.0;
  // aux_loss, seq_aux_loss, global_aux_loss; or sinkhorn, quantile_balancing, none
  std::vector<std::string> moe_router_load_balancing_type = {"aux_loss"};
  std::vector<double> moe_aux_loss_coeff = {0.0};  // of each type
  double moe_z_loss_coeff = 0.0;
  double moe_input_jitter_eps = 0.0;
  double moe_expert_capacity_factor = -1.0;  // negative: no token is dropped
  bool moe_pad_expert_input_to_capacity = false;
  TokenDropPolicy moe_token_drop_policy = TokenDropPolicy::kProbs;
  bool moe_apply_probs_on_input = false;
  int64_t moe_shared_expert_intermediate_size = 0;  // width of the experts of all tokens; 0: none
  bool moe_shared_expert_gate = false;
  // The rules of Megatron Core 0.5: no bias of the logits, jitter of the logits and not of the
  // input, losses of a rank's own tokens, any top-k (--megatron-compat 0.5).
  bool moe_legacy_router = false;
  bool moe_per_layer_logging = false;  // losses and tokens of each layer's experts

  bool has_experts() const { return num_experts > 0; }
  // True if layer `layer` of the stack has experts. Layers beyond the list are as the last one.
  bool has_experts(int64_t layer) const {
    if (moe_layer_freq.empty()) return has_experts();
    const auto last = static_cast<int64_t>(moe_layer_freq.size()) - 1;
    return has_experts() && moe_layer_freq[static_cast<size_t>(layer < last ? layer : last)] != 0;
  }
};

// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, sec. 2.2).
struct MultiTokenConfig {
  int64_t mtp_num_layers = 0;  // tokens predicted beyond the next; 0: none
  double mtp_loss_scaling_factor = 0.1;
  bool mtp_use_repeated_layer = false;
  bool mtp_detach_heads = false;
};

struct NormConfig {
  NormPlacement norm_placement = NormPlacement::kBefore;
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // the norm's weight is 1 + w
  bool add_norm_bias = true;        // a bias of each LayerNorm (MPT and Cohere have none)
};

// The scaling of rotary frequencies, by the names of transformers' config.json.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double low_freq_factor = 1.0;   // Llama 3
  double high_freq_factor = 4.0;  // Llama 3
  double beta_fast = 32.0;        // YaRN
  double beta_slow = 1.0;         // YaRN
  double mscale = 1.0;            // YaRN
  double mscale_all_dim = 0.0;    // YaRN
  double attention_factor = 0.0;  // of cosines and sines (YaRN, LongRoPE); 0: by the type's formula
  bool truncate = true;           // YaRN: the ends of its ramp are whole numbers
  std::vector<double> short_factor;  // LongRoPE: divides each frequency up to the original length
  std::vector<double> long_factor;   // LongRoPE: beyond it
};

struct PositionConfig {
  int64_t max_position_embeddings = 0;  // required; rows of the learned position table
  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;      // fraction of kv_channels that is rotated, (0, 1]
  bool rotary_interleaved = false;  // pair (2i, 2i+1) instead of (i, i + dim/2)
  int64_t rotary_seq_len_interpolation_factor = 1;  // positions are divided by it
  bool use_rope_scaling = false;                    // Llama 3 frequency scaling
  double rope_scaling_factor = 8.0;
  RopeScaling rope_scaling;             // of other kinds than use_rope_scaling
  double rotary_base_local = 0.0;       // base of layers with a window, unscaled; 0: rotary_base
  std::vector<int> no_rope_layers;      // of each layer: 1 if it rotates nothing; empty: all rotate
  int64_t learned_position_offset = 0;  // row of the position table of the first token (OPT: 2)
  bool alibi_before_scaling = false;    // scores are scale (q k + alibi) (Falcon)
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
};

// The residual stream.
struct ResidualConfig {
  double hidden_dropout = 0.1;                 // of each branch; probability in [0, 1)
  bool parallel_residual = false;              // x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)
  bool parallel_residual_shares_norm = false;  // ... + mlp(norm1(x)) (GPT-J, Falcon, Cohere)
  double residual_multiplier = 1.0;            // of each branch (Granite)
  bool apply_residual_connection_post_layernorm = false;  // residual source: the norm's output
  bool fp32_residual_connection = false;
};

// Low-rank adapters, which are trained while all other parameters stay (transformer/lora.h).
struct AdapterConfig {
  int64_t lora_rank = 0;  // 0: none
  double lora_alpha = 8.0;
  double lora_dropout = 0.0;  // of the inputs of adapters; probability in [0, 1)
  std::vector<std::string> lora_target_modules = {"linear_qkv"};
};

struct InitConfig {
  double init_method_std = 0.02;
  double embedding_init_method_std = 0.0;  // 0: init_method_std
  bool init_method_xavier_uniform = false;
  bool use_cpu_initialization = false;
  bool perform_initialization = true;
};

// Recomputation of activations in the backward pass: none, parts of layers, or layers.
enum class RecomputeGranularity { kNone, kSelective, kFull };
// The layers that kFull covers: groups of recompute_num_layers, or the first recompute_num_layers.
enum class RecomputeMethod { kNone, kUniform, kBlock };

struct RecomputeConfig {
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kNone;
  int64_t recompute_num_layers = 0;  // required with kFull
  // The parts of each layer that kSelective covers, of kRecomputedModules.
  std::vector<std::string> recompute_modules = {"core_attn"};
  bool distribute_saved_activations = false;
  bool checkpoint_in_cpu = false;  // keeps the inputs of recomputed layers in host memory

  bool stores_inputs_on_host() const {
    return checkpoint_in_cpu && recompute_granularity == RecomputeGranularity::kFull;
  }
  // True if kSelective covers the part.
  bool recomputes(std::string_view module) const;
};

// The values of --recompute-modules. A layer stores the inputs of mlp, moe and shared_experts and
// runs them again; of layernorm, activation and mla_up_proj it drops the results, which what it
// stores anyway makes again. core_attn and moe_act, the activation of experts, change nothing:
// attention stores no probabilities, and experts always compute their activation twice.
inline constexpr std::array<std::string_view, 8> kRecomputedModules = {
    "core_attn",   "layernorm", "activation", "moe_act",
    "mla_up_proj", "mlp",       "moe",        "shared_experts"};

// Activations of layers that wait in host memory for the backward pass.
struct OffloadConfig {
  int64_t cpu_offloading_num_layers = 0;                 // the first layers of each stage
  int64_t min_offloaded_tensor_size = int64_t{1} << 20;  // elements of a tensor that leaves
};

// Everything that a layer reads. A layer that differs from others has another LayerConfig
// (LayerRecipe).
struct LayerConfig : AttentionConfig,
                     LatentConfig,
                     FeedForwardConfig,
                     ExpertConfig,
                     NormConfig,
                     PositionConfig,
                     ResidualConfig,
                     AdapterConfig,
                     InitConfig,
                     RecomputeConfig,
                     OffloadConfig {
  int64_t num_layers = 0;                  // required; of the model, the encoder's for T5
  int64_t hidden_size = 0;                 // required
  bool add_bias_linear = true;             // biases in every linear layer
  std::optional<bool> add_attention_bias;  // of the linear layers of attention, instead
  DType params_dtype = DType::kFloat32;
  Fp8Config fp8;  // of the linear layers of transformer layers

  // True if the projection of attention's output, or that of queries, keys and values, has a bias.
  bool has_proj_bias() const { return add_attention_bias.value_or(add_bias_linear); }
  bool has_qkv_bias() const { return has_proj_bias() || add_qkv_bias; }
  // The d of the rotary frequencies base^(-2i/d), i < ceil(d/2): the part of a head that
  // rotary_percent asks for. Rotary embeddings turn d channels, d + 1 when d is odd.
  int64_t rotary_dim() const;
};

}  // namespace megatron
