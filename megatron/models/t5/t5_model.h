#pragma once

#include <optional>
#include <vector>

#include "megatron/models/model.h"
#include "megatron/models/t5/relative_positions.h"
#include "megatron/models/t5/t5_chunk.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

struct CachedBatch;

// T5 (Raffel et al. 2019, arXiv:1910.10683), or a chunk of it: an encoder, and a decoder that
// attends to its output. As Megatron-LM trains it, with learned positions, biased layers and a bias
// of the vocabulary; or with relative positions, scaled logits and an output layer of its own, as
// the published T5 1.0, T5 1.1, Flan and mT5 have them.
//
// Both stacks share the word embeddings. Parameter names are Megatron Core's:
// embedding.word_embeddings.weight, encoder.layers.0.self_attention.linear_qkv.weight,
// decoder.layers.0.cross_attention.linear_kv.weight, output_layer.bias, ...
class T5Model final : public Model {
 public:
  // `config` is resolved and has padded_vocab_size; num_layers and seq_length are the encoder's.
  // With tied embeddings the chunk with the head has a copy of the word embeddings, and so has the
  // one where the decoder begins, with any embeddings.
  T5Model(const TransformerConfig& config, const T5Chunk& chunk, const TensorParallel& tp,
          Stream stream);
  // The whole model on one rank.
  T5Model(const TransformerConfig& config, Stream stream);

  // Activations: the encoder's states, after its last chunk behind the final norm; then from the
  // decoder's first chunk on those of the decoder.
  Activations forward(const ModelInput& input, std::span<const Variable> activations,
                      RandomState& random) const override;

  // The two halves of forward(), of a chunk that has them. `hidden` are the states of the same
  // stack from the chunk before.
  Variable encode(const ModelInput& input, const Variable& hidden, RandomState& random) const;
  Variable decode(const ModelInput& input, const Variable& encoded, const Variable& hidden,
                  RandomState& random) const;

  // Generation: the decoder's layers cache their keys and values of the encoder's output.
  //   encoded [se, b, h]   slots [se b] int32 (CrossAttention::keep)
  void keep_encoder_output(const Variable& encoded, KvCache& cache, const Tensor& slots) const;
  // For generation, without gradient: the decoder's states [t, 1, h] of the tokens [1, t] of
  // several texts. `hidden` are those of the chunk before; the one where the decoder begins gets
  // none. `distance_bias` is distance_bias() of the longest.
  Variable decode_cached(const RowIds& tokens, const RowIds& position_ids, const Variable& hidden,
                         const Tensor& distance_bias, CachedBatch& cached) const;
  // Undefined without relative positions, and for a chunk without layers of the decoder.
  Tensor distance_bias(int64_t length) const;

  VocabularyProduct vocabulary_product(const Variable& hidden) const override;
  ChunkBoundary boundary(int64_t micro_batch_size, int64_t seq_length) const override;
  ModelChunk cached_layers() const override;

  const T5Chunk& chunk() const { return chunk_; }

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

  T5Chunk chunk_;
  uint64_t encoder_site_;  // dropout sites of the embeddings
  uint64_t decoder_site_;
  std::optional<EmbeddingParts> embedding_;
  std::optional<RelativePositions> encoder_positions_;
  std::optional<RelativePositions> decoder_positions_;
  std::optional<TransformerBlock> encoder_;
  std::optional<TransformerBlock> decoder_;
  std::optional<OutputLayer> output_layer_;
};

// The parameters of a T5, or of a chunk of it, in the order of the model and without memory.
std::vector<Parameter> t5_specs(const TransformerConfig& config);
std::vector<Parameter> t5_specs(const TransformerConfig& config, const T5Chunk& chunk);

}  // namespace megatron
