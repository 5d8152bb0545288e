#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/kernels/activation.h"
#include "megatron/nn/fp8_config.h"
#include "megatron/transformer/retro_config.h"

namespace megatron {

// What a transformer is for: it continues texts, fills gaps in them, or maps one text to another.
enum class ModelKind { kGpt, kBert, kT5 };
// "GPT", "BERT", "T5"
std::string_view name_of(ModelKind kind);

// "gelu_tanh", "swiglu", ...
std::string_view name_of(Activation activation);

// --glu-activation: a gated activation whose gate is the second half.
enum class GluActivation { kNone, kGeglu, kLiglu, kReglu, kSwiglu, kGegluTanh };

// The flags that choose an activation in Megatron-LM, one Activation once resolved.
struct ActivationFlags {
  bool openai_gelu = false;
  bool onnx_safe = false;
  bool swiglu = false;
  bool squared_relu = false;
  bool relu = false;
  GluActivation glu_activation = GluActivation::kNone;
  bool bias_gelu_fusion = true;  // the fused GELU is the tanh form, the unfused one the erf form
};

// The activation the flags mean. First of: openai_gelu, onnx_safe, swiglu, squared_relu,
// relu, glu_activation, GELU (tanh if fused with the bias of a biased linear layer, erf otherwise).
// Compat: Megatron-LM core_r0.5.0 chooses between tanh and erf by --no-bias-gelu-fusion and
// --disable-bias-linear; checkpoints depend on it.
Activation activation_of(const ActivationFlags& flags, bool add_bias_linear);
// Combinations of the flags that contradict each other.
std::vector<std::string> problems(const ActivationFlags& flags);

enum class PositionEmbedding { kLearnedAbsolute, kRope, kAlibi, kRelative, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };

// What the backward pass computes again instead of keeping: nothing, the attention core, or layers.
enum class RecomputeGranularity { kNone, kSelective, kFull };
// Which layers kFull covers: groups of recompute_num_layers, or the first recompute_num_layers.
enum class RecomputeMethod { kNone, kUniform, kBlock };

// Size and mathematics of a transformer: GPT-2, Llama, GPT-NeoX, BLOOM, BERT and T5. Names are
// Megatron's flag names without the dashes.
struct TransformerConfig {
  ModelKind kind = ModelKind::kGpt;

  // Size.
  int64_t num_layers = 0;               // required; the encoder's for T5
  int64_t encoder_num_layers = 0;       // 0: num_layers
  int64_t decoder_num_layers = 0;       // T5 only; 0: num_layers
  int64_t hidden_size = 0;              // required
  int64_t ffn_hidden_size = 0;          // 0: 4 * hidden_size, with swiglu 2/3 of it (see resolved)
  int64_t num_attention_heads = 0;      // required
  int64_t kv_channels = 0;              // size of one head; 0: hidden_size / num_attention_heads
  bool group_query_attention = false;   // heads share keys and values in num_query_groups groups
  int64_t num_query_groups = 1;         // resolved: num_attention_heads without the switch above
  int64_t seq_length = 0;               // required
  int64_t encoder_seq_length = 0;       // 0: seq_length
  int64_t decoder_seq_length = 0;       // T5 only
  int64_t max_position_embeddings = 0;  // required; rows of the learned position table
  int64_t padded_vocab_size = 0;        // rows of the embedding; set once the tokenizer is known
  // Rows that are not padding, for a model that came without padding (see counted_vocab_size). 0:
  // all, as Megatron-LM trains them.
  int64_t true_vocab_size = 0;
  int64_t make_vocab_size_divisible_by =
      128;                        // times tp: the unit that the vocabulary is padded to
  int64_t pad_vocab_size_to = 0;  // the padded size itself; 0: the next multiple

  // Position information.
  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;      // fraction of kv_channels that is rotated, (0, 1]
  bool rotary_interleaved = false;  // pair (2i, 2i+1) instead of (i, i + dim/2)
  int64_t rotary_seq_len_interpolation_factor = 1;  // positions are divided by it
  bool use_rope_scaling = false;                    // Llama 3 frequency scaling
  double rope_scaling_factor = 8.0;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;

  // Layers.
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // the norm's weight is 1 + w
  bool qk_layernorm = false;        // normalize queries and keys per head, before rotation
  bool embed_layernorm = false;     // LayerNorm on the word embedding (BLOOM)
  bool parallel_residual = false;   // x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)
  bool apply_residual_connection_post_layernorm = false;  // residual source: the norm's output
  Activation activation = Activation::kGeluTanh;
  bool add_bias_linear = true;  // biases in every linear layer
  bool add_qkv_bias = false;    // bias of the QKV projection when the others have none
  bool untie_embeddings_and_output_weights = false;
  bool bert_binary_head = true;  // BERT's next-sentence head
  int64_t num_tokentypes = 0;    // rows of BERT's table of token types; 0: 2 with the binary head
  Activation head_activation = Activation::kGeluErf;  // of BERT's LM head
  bool add_lm_head_bias = true;        // T5: a bias of the vocabulary beside tied embeddings
  bool scale_decoder_outputs = false;  // T5: logits of tied embeddings read hidden_size^-0.5 x
  double softmax_scale = 0.0;          // of attention scores; 0: kv_channels^-0.5
  double attention_dropout = 0.1;      // probability in [0, 1)
  double hidden_dropout = 0.1;         // probability in [0, 1)
  double label_smoothing = 0.0;        // fraction of the probability given to all words, [0, 1)

  // Numerics.
  DType params_dtype = DType::kFloat32;
  bool fp32_residual_connection = false;
  bool apply_query_key_layer_scaling = false;  // keeps fp16 scores small; softmax then in fp32
  bool attention_softmax_in_fp32 = false;
  bool fp16_lm_cross_entropy = false;
  Fp8Config fp8;  // of the linear layers of transformer layers

  // Low-rank adapters, which are trained while all other parameters stay (transformer/lora.h).
  int64_t lora_rank = 0;  // 0: none
  double lora_alpha = 8.0;
  double lora_dropout = 0.0;  // of the inputs of adapters; probability in [0, 1)
  std::vector<std::string> lora_target_modules = {"linear_qkv"};

  RetroConfig retro;  // of a GPT that attends to retrieved texts

  // Initialization.
  double init_method_std = 0.02;
  double embedding_init_method_std = 0.0;  // 0: init_method_std
  bool init_method_xavier_uniform = false;
  bool use_cpu_initialization = false;
  bool perform_initialization = true;

  // Recomputation of activations.
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kNone;
  int64_t recompute_num_layers = 0;  // required with kFull
  bool distribute_saved_activations = false;
  bool checkpoint_in_cpu = false;  // the inputs of recomputed layers wait in host memory

  // Ids that have a probability: the softmax of the loss and of sampling leaves the rows beyond
  // them out. Compat: Megatron-LM trains its padding rows, so they count unless true_vocab_size is
  // known.
  int64_t counted_vocab_size() const {
    return true_vocab_size > 0 ? true_vocab_size : padded_vocab_size;
  }
  int64_t tokentypes() const {
    return num_tokentypes > 0 || !bert_binary_head ? num_tokentypes : 2;
  }
  bool is_gated() const { return megatron::is_gated(activation); }
  // The d of the rotary frequencies base^(-2i/d), i < ceil(d/2): the part of a head that
  // rotary_percent asks for. Rotary embeddings turn d channels, d + 1 when d is odd.
  int64_t rotary_dim() const;
  // Groups of keys and values that a tensor-parallel rank has: one, shared with other ranks, where
  // there are more ranks than groups.
  int64_t query_groups_of_rank(int64_t tensor_parallel_size) const {
    return num_query_groups > tensor_parallel_size ? num_query_groups / tensor_parallel_size : 1;
  }
  bool stores_inputs_on_host() const {
    return checkpoint_in_cpu && recompute_granularity == RecomputeGranularity::kFull;
  }
  // Has the QKV projection a bias?
  bool has_qkv_bias() const { return add_bias_linear || add_qkv_bias; }
};

// Fills every 0 that stands for a default. Pure; call once, then treat the result as const.
TransformerConfig resolved(TransformerConfig config);

// Everything wrong with a resolved config, one sentence each; empty when it is valid.
std::vector<std::string> problems(const TransformerConfig& config, int64_t tensor_parallel_size);

}  // namespace megatron
