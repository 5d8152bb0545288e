#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megatron/nn/layers.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

// The tokens of a microbatch, on the host or on the model's device. A chunk in the middle of the
// model needs the padding mask alone.
struct BertInput {
  RowIds tokens = {};        // [b, s]
  RowIds position_ids = {};  // [b, s]; undefined: 0 .. s - 1
  RowIds token_types = {};   // [b, s], 0 or 1; undefined for a model without token types
  Tensor padding_mask = {};  // [b, s] bool: true hides a token; undefined: none is hidden
};

// What a BERT computes from the output of its encoder.
struct BertHeads {
  // Name of a classification head on the pooled first token ("classification_head"), in place of
  // the heads of pre-training; empty: those.
  std::string classifier = {};
  int64_t num_classes = 0;

  bool is_classifier() const { return !classifier.empty(); }
};

// BERT as Megatron-LM trains it (Devlin et al. 2018, arXiv:1810.04805; the norms before the
// branches as in Shoeybi et al. 2019, arXiv:1909.08053, sec. 5.4), or a chunk of it:
// transformers' MegatronBertForPreTraining. Without --bert-no-binary-head it also says whether the
// second of two sentences follows the first.
//
// Parameter names are Megatron Core's: embedding.tokentype_embeddings.weight,
// encoder.layers.0.self_attention.linear_qkv.weight, lm_head.dense.weight, output_layer.bias,
// pooler.dense.weight, binary_head.weight, ...
class BertModel final : public Module {
 public:
  // `config` is resolved, has padded_vocab_size, tied embeddings and learned positions. The chunk
  // with the head has a copy of the word embeddings, unless the head is a classifier.
  BertModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
            Stream stream, BertHeads heads = {});
  // The whole model on one rank.
  BertModel(const TransformerConfig& config, Stream stream);

  // Runs this chunk on the activations of the chunk before; the first chunk gets none. Returns
  // [s, b, h], [s/tp, b, h] with sequence parallelism; the last chunk ends with the final norm.
  Variable forward(const BertInput& input, const Variable& activations, RandomState& random) const;

  // The heads, of the chunk that has them, on the output of forward().
  //   logits         -> [s, b, v/tp]: this rank's columns, of a product after the LM head
  //   binary_logits  -> [b, 2]: column 1 says that the parts are exchanged
  VocabularyProduct vocabulary_product(const Variable& hidden) const;
  Variable logits(const Variable& hidden) const {
    return logits_of(vocabulary_product(hidden), tp_);
  }
  Variable binary_logits(const Variable& hidden) const;
  //   class_logits   -> [b, num_classes], with dropout on the pooled token
  Variable class_logits(const Variable& hidden, RandomState& random) const;

  const TransformerConfig& config() const { return config_; }
  const ModelChunk& chunk() const { return chunk_; }
  const BertHeads& heads() const { return heads_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  // Where the parameters are and the work is done.
  Stream stream() const { return stream_; }

 private:
  Variable embed(const BertInput& input, RandomState& random) const;
  Variable pooled(const Variable& hidden) const;  // [b, h]

  struct EmbeddingParts final : Module {
    EmbeddingParts(const TransformerConfig& config, const ModelChunk& chunk,
                   const TensorParallel& tp, Stream stream, bool is_tied);
    VocabParallelEmbedding word_embeddings;
    std::optional<Embedding> position_embeddings;
    std::optional<Embedding> tokentype_embeddings;
  };
  struct LmHead final : Module {
    LmHead(const TransformerConfig& config, const TensorParallel& tp, Stream stream);
    Linear dense;
    Norm layer_norm;
  };
  struct VocabularyBias final : Module {
    VocabularyBias(const TransformerConfig& config, const TensorParallel& tp, Stream stream);
    Variable bias;  // [v/tp]
  };
  struct Pooler final : Module {
    Pooler(const TransformerConfig& config, Stream stream);
    Linear dense;
  };

  TransformerConfig config_;
  ModelChunk chunk_;
  TensorParallel tp_;
  Stream stream_;
  BertHeads heads_;
  uint64_t embedding_site_;
  uint64_t pooler_site_;
  std::optional<EmbeddingParts> embedding_;  // where the model begins, and copied where it ends
  TransformerBlock encoder_;
  std::optional<LmHead> lm_head_;
  std::optional<VocabularyBias> output_layer_;
  std::optional<Pooler> pooler_;
  std::optional<Linear> binary_head_;
  std::optional<Linear> classifier_;
};

// The parameters of a BERT, or of a chunk of it, in the order of the model and without memory.
std::vector<ParameterSpec> bert_specs(const TransformerConfig& config);
std::vector<ParameterSpec> bert_specs(const TransformerConfig& config, const ModelChunk& chunk,
                                      BertHeads heads = {});

// The training losses, fp32 []: the same on every tensor-parallel rank. Their sum is minimised.
struct BertLosses {
  Variable lm;   // mean over the tokens that count
  Variable sop;  // of the binary head: mean over the samples; undefined without the head
};
// What the losses compare the model with, on the model's device.
struct BertTargets {
  Tensor labels;     // [b, s] int64 (see cross_entropy)
  Tensor loss_mask;  // [b, s] fp32
  // Of the binary head; undefined without it.
  Tensor is_random;       // [b] int64, 1: the parts are exchanged
  Tensor sample_weights;  // [b, 1] fp32: ones
  Tensor seed = {};       // [] fp32: the gradient that training starts with (vocabulary_loss())
  Tensor divisor = {};    // [] fp32, of the tokens' losses; undefined: the tokens that count
};
// `hidden` is from the chunk with the head.
BertLosses bert_losses(const BertModel& model, const Variable& hidden, const BertTargets& targets);

}  // namespace megatron
