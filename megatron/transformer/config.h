#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/transformer/layer_config.h"
#include "megatron/transformer/model_kind.h"
#include "megatron/transformer/retro_config.h"

namespace megatron {

// "gelu_tanh", "swiglu", ...
std::string_view name_of(Activation activation);

// Values of --glu-activation: gated activations whose gate is the second half of fc1's output, or
// the first.
enum class GluActivation { kNone, kGeglu, kLiglu, kReglu, kSwiglu, kGegluTanh, kGegluTanhFirst };

// The flags that choose an activation in Megatron-LM, one Activation once resolved.
struct ActivationFlags {
  bool openai_gelu = false;
  bool onnx_safe = false;
  bool swiglu = false;
  bool squared_relu = false;
  bool relu = false;
  GluActivation glu_activation = GluActivation::kNone;
  bool quick_geglu = false;
  double glu_linear_offset = 0.0;            // of quick_geglu: 0, or 1 with the clamp
  double activation_func_clamp_value = 0.0;  // of quick_geglu: 0 for none, or 7
  bool bias_gelu_fusion = true;  // the fused GELU is the tanh form, the unfused one the erf form
};

// The activation that the flags select: the first that applies of openai_gelu, onnx_safe, swiglu,
// squared_relu, relu, glu_activation, quick_geglu, GELU (tanh if fused with the bias of a biased
// linear layer, erf otherwise). Compat: Megatron-LM core_r0.5.0 chooses between tanh and erf by
// --no-bias-gelu-fusion and --disable-bias-linear; checkpoints depend on it.
Activation activation_of(const ActivationFlags& flags, bool add_bias_linear);
// Combinations of the flags that contradict each other.
std::vector<std::string> problems(const ActivationFlags& flags);

// The embedding, the output layer and the loss.
struct VocabularyConfig {
  int64_t padded_vocab_size = 0;  // rows of the embedding; set once the tokenizer is known
  // Rows that are not padding, for a model that came without padding (see counted_vocab_size). 0:
  // all, as Megatron-LM trains them.
  int64_t true_vocab_size = 0;
  int64_t make_vocab_size_divisible_by =
      128;                        // times tp: the unit that the vocabulary is padded to
  int64_t pad_vocab_size_to = 0;  // the padded size itself; 0: the next multiple
  bool untie_embeddings_and_output_weights = false;
  bool embed_layernorm = false;  // LayerNorm on the word embedding (BLOOM)
  bool fp16_lm_cross_entropy = false;
  double label_smoothing = 0.0;          // fraction of the probability given to all words, [0, 1)
  double embedding_multiplier = 1.0;     // of word embeddings, rounded to their dtype (Gemma)
  double logits_multiplier = 1.0;        // (Granite, Cohere)
  double final_logit_softcapping = 0.0;  // logits become c tanh(logit / c); 0: they stay (Gemma 2)
  bool add_output_bias = false;          // a bias of the output layer (GPT-J)

  // Number of ids that the softmax of the loss and of sampling covers; it excludes the rows beyond
  // them. Compat: Megatron-LM trains its padding rows, so they count unless true_vocab_size is
  // known.
  int64_t counted_vocab_size() const {
    return true_vocab_size > 0 ? true_vocab_size : padded_vocab_size;
  }
};

// Size and mathematics of a transformer: GPT-2, Llama, GPT-NeoX, BLOOM, BERT and T5. Names are
// Megatron's flag names without the dashes.
struct TransformerConfig : LayerConfig, VocabularyConfig, MultiTokenConfig {
  ModelKind kind = ModelKind::kGpt;

  // Layers with a window (--window-attn-skip-freq), 1 for each; empty: all of attention_window.
  std::vector<int> window_layers;

  // The stacks of the kind.
  bool has_encoder() const { return megatron::has_encoder(kind); }
  bool has_decoder() const { return megatron::has_decoder(kind); }
  bool is_encoder_decoder() const { return megatron::is_encoder_decoder(kind); }
  bool is_decoder_only() const { return megatron::is_decoder_only(kind); }
  bool is_encoder_only() const { return megatron::is_encoder_only(kind); }

  int64_t encoder_num_layers = 0;  // 0: num_layers
  int64_t decoder_num_layers = 0;  // T5 only; 0: num_layers
  int64_t seq_length = 0;          // required
  int64_t encoder_seq_length = 0;  // 0: seq_length
  int64_t decoder_seq_length = 0;  // T5 only

  // BERT and T5.
  bool bert_binary_head = true;  // BERT's next-sentence head
  int64_t num_tokentypes = 0;    // rows of BERT's table of token types; 0: 2 with the binary head
  Activation head_activation = Activation::kGeluErf;  // of BERT's LM head
  bool add_lm_head_bias = true;        // T5: a bias of the vocabulary beside tied embeddings
  bool scale_decoder_outputs = false;  // T5: logits of tied embeddings read hidden_size^-0.5 x

  RetroConfig retro;  // of a GPT that attends to retrieved texts

  int64_t tokentypes() const {
    return num_tokentypes > 0 || !bert_binary_head ? num_tokentypes : 2;
  }
};

// Fills every 0 that stands for a default. Pure; call once, then treat the result as const.
TransformerConfig resolved(TransformerConfig config);

// Everything wrong with a resolved config, one sentence each; empty when it is valid.
std::vector<std::string> problems(const TransformerConfig& config, int64_t tensor_parallel_size);

}  // namespace megatron
