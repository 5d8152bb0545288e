#pragma once

#include <optional>
#include <vector>

#include "megatron/models/bert/bert_heads.h"
#include "megatron/models/model.h"
#include "megatron/nn/layers.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

// BERT as Megatron-LM trains it (Devlin et al. 2018, arXiv:1810.04805; the norms before the
// branches as in Shoeybi et al. 2019, arXiv:1909.08053, sec. 5.4), or a chunk of it: transformers'
// MegatronBertForPreTraining. Without --bert-no-binary-head it has a head for sentence order.
//
// Parameter names are Megatron Core's: embedding.tokentype_embeddings.weight,
// encoder.layers.0.self_attention.linear_qkv.weight, lm_head.dense.weight, output_layer.bias,
// pooler.dense.weight, binary_head.weight, ...
class BertModel final : public Model {
 public:
  // `config` is resolved, has padded_vocab_size, tied embeddings and learned positions. The chunk
  // with the head has a copy of the word embeddings, unless the head is a classifier.
  BertModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
            Stream stream, BertHeads heads = {});
  // The whole model on one rank.
  BertModel(const TransformerConfig& config, Stream stream);

  Activations forward(const ModelInput& input, std::span<const Variable> activations,
                      RandomState& random) const override;
  // Reads the hidden states through the LM head.
  VocabularyProduct vocabulary_product(const Variable& hidden) const override;
  ChunkBoundary boundary(int64_t micro_batch_size, int64_t seq_length) const override;
  ModelChunk cached_layers() const override { return {.num_layers = 0}; }

  // The heads behind the pooler, on the hidden states.
  //   binary_logits  -> [b, 2]: column 1 is the class of exchanged parts
  Variable binary_logits(const Variable& hidden) const;
  //   class_logits   -> [b, num_classes], with dropout on the pooled token
  Variable class_logits(const Variable& hidden, RandomState& random) const;

  const ModelChunk& chunk() const { return chunk_; }
  const BertHeads& heads() const { return heads_; }

 private:
  Variable embed(const ModelInput& input, RandomState& random) const;
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

  ModelChunk chunk_;
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
std::vector<Parameter> bert_specs(const TransformerConfig& config);
std::vector<Parameter> bert_specs(const TransformerConfig& config, const ModelChunk& chunk,
                                  BertHeads heads = {});

// The training losses, fp32 []: the same on every tensor-parallel rank. Their sum is minimised.
struct BertLosses {
  Variable lm;   // mean over the tokens that count
  Variable sop;  // of the binary head: mean over the samples; undefined without the head
};
// `hidden` is from the chunk with the head; `sample_weights` [b, 1] fp32 are ones on the model's
// device, undefined without the binary head.
BertLosses bert_losses(const BertModel& model, const Variable& hidden, const TokenTargets& targets,
                       const Tensor& sample_weights);

// The loss of a classification head, fp32 [].
//   scores [b, n]
//   labels  kClass: [b, 1] int64; kIndependent: [b n, 1] int64, 0 or 1; kValue, n = 1: [b] fp32
//   sample_weights  as above, for kClass
Variable label_loss(LabelKind kind, const Variable& scores, const Tensor& labels,
                    const Tensor& sample_weights);

}  // namespace megatron
