#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/kernels/activation.h"
#include "megatron/nn/fp8_config.h"

// The settings of a layer, one struct for each part. Names are Megatron's flag names without the
// dashes.
namespace megatron {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kAlibi, kRelative, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };

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

struct NormConfig {
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // the norm's weight is 1 + w
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
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
};

// The residual stream.
struct ResidualConfig {
  double hidden_dropout = 0.1;     // of each branch; probability in [0, 1)
  bool parallel_residual = false;  // x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)
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

// Everything that a layer reads. A layer that differs from others has another LayerConfig
// (LayerRecipe).
struct LayerConfig : AttentionConfig,
                     FeedForwardConfig,
                     NormConfig,
                     PositionConfig,
                     ResidualConfig,
                     AdapterConfig,
                     InitConfig {
  int64_t num_layers = 0;       // required; of the model, the encoder's for T5
  int64_t hidden_size = 0;      // required
  bool add_bias_linear = true;  // biases in every linear layer
  DType params_dtype = DType::kFloat32;
  Fp8Config fp8;  // of the linear layers of transformer layers

  // Has the QKV projection a bias?
  bool has_qkv_bias() const { return add_bias_linear || add_qkv_bias; }
  // The d of the rotary frequencies base^(-2i/d), i < ceil(d/2): the part of a head that
  // rotary_percent asks for. Rotary embeddings turn d channels, d + 1 when d is odd.
  int64_t rotary_dim() const;
};

}  // namespace megatron
