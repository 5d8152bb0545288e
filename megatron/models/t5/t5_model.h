#pragma once

#include <optional>
#include <vector>

#include "megatron/models/t5/relative_positions.h"
#include "megatron/models/t5/t5_chunk.h"
#include "megatron/nn/module.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

struct CachedBatch;

// The tokens of a microbatch, on the host or on the model's device. A chunk that does not embed
// them needs the padding mask alone.
struct T5Input {
  RowIds encoder_tokens = {};        // [b, se]
  RowIds encoder_position_ids = {};  // [b, se]; undefined: 0 .. se - 1
  RowIds decoder_tokens = {};        // [b, sd]
  RowIds decoder_position_ids = {};  // [b, sd]; undefined: 0 .. sd - 1
  Tensor encoder_padding_mask = {};  // [b, se] bool: true hides a token; undefined: none is hidden
};

// The states of a microbatch between two chunks: [s, b, h], [s/tp, b, h] with sequence parallelism.
struct T5States {
  Variable encoder = {};  // after the encoder's last chunk its output, behind the final norm
  Variable decoder = {};  // undefined before the decoder's first chunk
};

// T5 (Raffel et al. 2019, arXiv:1910.10683), or a chunk of it: an encoder, and a decoder that
// attends to its output. As Megatron-LM trains it, with learned positions, biased layers and a bias
// of the vocabulary; or with relative positions, scaled logits and an output layer of its own, as
// the published T5 1.0, T5 1.1, Flan and mT5 have them.
//
// Both stacks look their words up in one table. Parameter names are Megatron Core's:
// embedding.word_embeddings.weight, encoder.layers.0.self_attention.linear_qkv.weight,
// decoder.layers.0.cross_attention.linear_kv.weight, output_layer.bias, ...
class T5Model final : public Module {
 public:
  // `config` is resolved and has padded_vocab_size; num_layers and seq_length are the encoder's.
  // With tied embeddings the chunk with the head has a copy of the word embeddings, and so has the
  // one where the decoder begins, with any embeddings.
  T5Model(const TransformerConfig& config, const T5Chunk& chunk, const TensorParallel& tp,
          Stream stream);
  // The whole model on one rank.
  T5Model(const TransformerConfig& config, Stream stream);

  // Runs this chunk on the states from the chunk before; the first chunk gets none.
  T5States forward(const T5Input& input, const T5States& states, RandomState& random) const;

  // The two halves of forward(), of a chunk that has them.
  Variable encode(const T5Input& input, const Variable& hidden, RandomState& random) const;
  Variable decode(const T5Input& input, const T5States& states, RandomState& random) const;

  // For generation: the decoder's layers keep their keys and values of the encoder's output.
  //   encoded [se, b, h]   slots [se b] int32 (CrossAttention::keep)
  void keep_encoder_output(const Variable& encoded, KvCache& cache, const Tensor& slots) const;
  // For generation, without gradient: the decoder's states [t, 1, h] of the tokens [1, t] of
  // several texts. `hidden` are those of the chunk before; the one where the decoder begins gets
  // none. `distance_bias` is distance_bias() of the longest.
  Variable decode_cached(const RowIds& tokens, const RowIds& position_ids, const Variable& hidden,
                         const Tensor& distance_bias, CachedBatch& cached) const;
  // Undefined without relative positions, and for a chunk without layers of the decoder.
  Tensor distance_bias(int64_t length) const;

  // The product that makes logits of the decoder's end, [sd, b, h].
  VocabularyProduct vocabulary_product(const Variable& hidden) const;
  // This rank's columns of the logits, [sd, b, v/tp].
  Variable logits(const Variable& hidden) const {
    return logits_of(vocabulary_product(hidden), tp_);
  }

  const TransformerConfig& config() const { return config_; }
  const T5Chunk& chunk() const { return chunk_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  Stream stream() const { return stream_; }

 private:
  // The table of position embeddings, a row each.
  struct PositionTable final : Module {
    PositionTable(const TransformerConfig& config, const T5Chunk& chunk, Stream stream);
    Variable weight;  // [max positions, h]
  };
  struct EmbeddingParts final : Module {
    EmbeddingParts(const TransformerConfig& config, const T5Chunk& chunk, const TensorParallel& tp,
                   Stream stream);
    VocabParallelEmbedding word_embeddings;
    std::optional<PositionTable> position_embeddings;
  };
  struct OutputLayer final : Module {
    OutputLayer(const TransformerConfig& config, const TensorParallel& tp, Stream stream);
    Variable weight;  // [v/tp, h]; undefined with tied embeddings
    Variable bias;    // [v/tp]; undefined without
  };

  Variable embed(const RowIds& tokens, const RowIds& position_ids, uint64_t dropout_site,
                 RandomState& random) const;
  // Tokens in the whole sequence of which this rank has hidden states.
  int64_t length_of(const Variable& hidden) const;

  TransformerConfig config_;
  T5Chunk chunk_;
  TensorParallel tp_;
  Stream stream_;
  uint64_t encoder_site_;  // of the dropouts of embeddings
  uint64_t decoder_site_;
  std::optional<EmbeddingParts> embedding_;
  std::optional<RelativePositions> encoder_positions_;
  std::optional<RelativePositions> decoder_positions_;
  std::optional<TransformerBlock> encoder_;
  std::optional<TransformerBlock> decoder_;
  std::optional<OutputLayer> output_layer_;
};

// The parameters of a T5, or of a chunk of it, in the order of the model and without memory.
std::vector<ParameterSpec> t5_specs(const TransformerConfig& config);
std::vector<ParameterSpec> t5_specs(const TransformerConfig& config, const T5Chunk& chunk);

// The training loss, fp32 []: the mean over the tokens that count, the same on every
// tensor-parallel rank.
//   hidden     of the decoder, from the chunk with the head
//   labels     [b, sd] int64 (see cross_entropy)    loss_mask [b, sd] fp32
//   seed       as for vocabulary_loss()             divisor   likewise
Variable t5_loss(const T5Model& model, const Variable& hidden, const Tensor& labels,
                 const Tensor& loss_mask, const Tensor& seed = {}, const Tensor& divisor = {});

}  // namespace megatron
