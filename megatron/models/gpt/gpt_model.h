#pragma once

#include <memory>
#include <optional>

#include "megatron/models/gpt/multi_token.h"
#include "megatron/models/model.h"
#include "megatron/nn/layers.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

// A decoder-only language model, or a chunk of it: GPT-2 and, by its config, Llama, GPT-NeoX and
// BLOOM (Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971). Models with other parts in
// their layers derive from it.
//
// Parameter names are Megatron Core's: embedding.word_embeddings.weight,
// decoder.layers.0.self_attention.linear_qkv.weight, ...
class GptModel : public Model {
 public:
  // `config` is resolved and has padded_vocab_size. Parameters are undefined until initialize() or
  // a checkpoint fills them. A chunk with the head but without the embedding has a copy of it if
  // embeddings are tied or with multi-token prediction.
  GptModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
           Stream stream, const ContextParallel& cp = {});
  // The whole model on one rank.
  GptModel(const TransformerConfig& config, Stream stream);

  // With future tokens the chunk with the head returns the hidden states of each depth of
  // multi-token prediction first.
  Activations forward(const ModelInput& input, std::span<const Variable> activations,
                      RandomState& random) const override;
  // The same for generation, outside grad mode: the tokens [1, s] with their position_ids are those
  // of the rows of `cached`. Each sees the tokens of its own row, in the cache and here.
  Variable forward_cached(const ModelInput& input, const Variable& hidden, RandomState& random,
                          CachedBatch& cached) const;
  // Depth k = 1, 2, .. of multi-token prediction, for generation, on the chunk with the head.
  // `states` [t, 1, h] are those of the depth before, for k = 1 of the decoder, behind its final
  // norm; position_ids [1, t] are theirs.
  Variable forward_depth_cached(int64_t k, const Variable& states, const FutureTokens& further,
                                const RowIds& position_ids, CachedBatch& cached) const;
  // The embedding of the tokens, with which the first chunk begins: [s, b, h] or [s/tp, b, h].
  Variable embed(const ModelInput& input, RandomState& random) const;
  VocabularyProduct vocabulary_product(const Variable& hidden) const override;
  ChunkBoundary boundary(int64_t micro_batch_size, int64_t seq_length) const override;
  ModelChunk cached_layers() const override;

  const ModelChunk& chunk() const { return chunk_; }
  const ContextParallel& context_parallel() const { return cp_; }
  // kernels/rotary.h; undefined without rotary positions.
  const Tensor& rotary_angles() const { return rotary_table_; }

 protected:
  // With layers that `make` builds.
  GptModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
           Stream stream, const ContextParallel& cp, const LayerMaker& make);
  // Inputs of a derived model's own parts, computed after the embedding. Null: none.
  virtual std::unique_ptr<ModelContext> model_context(const ModelInput& /*input*/,
                                                      RandomState& /*random*/,
                                                      const CachedBatch* /*cached*/) const {
    return nullptr;
  }
  // The embedding of tokens, whose dropout has this key.
  Variable looked_up(const RowIds& tokens, RowIds position_ids, DropoutKey dropout) const;

 private:
  // The context of a pass, apart from documents and prefixes.
  ForwardContext context_of(const RowIds& position_ids, RandomState& random,
                            CachedBatch* cached) const;
  Activations run(const ModelInput& input, const Variable& hidden, RandomState& random,
                  CachedBatch* cached) const;

  ModelChunk chunk_;
  ContextParallel cp_;
  uint64_t embedding_site_;
  Tensor rotary_table_;
  Tensor local_rotary_table_;  // of layers with a window and rotary_base_local

  // A module of its own, so that names begin with "embedding.".
  struct EmbeddingParts final : Module {
    EmbeddingParts(const TransformerConfig& config, const ModelChunk& chunk,
                   const TensorParallel& tp, Stream stream);
    VocabParallelEmbedding word_embeddings;
    std::optional<Embedding> position_embeddings;
    std::optional<Norm> norm;  // --embed-layernorm
  };
  std::optional<EmbeddingParts> embedding_;  // in the first chunk, and a copy in the last
  TransformerBlock decoder_;
  std::optional<MultiTokenPrediction> mtp_;           // in the last chunk
  std::optional<ColumnParallelLinear> output_layer_;  // untied embeddings only
};

// The parameters of a GPT, or of a chunk of it, in the order of the model and without memory. Their
// shardings say how tensor-parallel ranks divide them: spec.info.sharding.on_rank(rank, ranks).
std::vector<Parameter> gpt_specs(const TransformerConfig& config);
std::vector<Parameter> gpt_specs(const TransformerConfig& config, const ModelChunk& chunk);

}  // namespace megatron
