#pragma once

#include <optional>

#include "megatron/nn/layers.h"
#include "megatron/parallel/pipeline/boundary.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

// The tokens of a microbatch and their positions, on the host or on the model's device. A chunk in
// the middle of the model needs no tokens.
struct GptInput {
  RowIds tokens = {};           // [b, s]
  RowIds position_ids = {};     // [b, s]; undefined: 0 .. s - 1
  Tensor document_starts = {};  // [b, s] int32: token i sees [start, i]; undefined: all before it
  Tensor prefix_ends = {};      // [b, s] int32: token i also sees [i, end); undefined: none of them
  // Of a Retro: the tokens of l chunks' k neighbours. Undefined: none of them is looked at.
  RowIds neighbor_tokens = {};        // [b l k, r], row (sample l + chunk) k + neighbour
  RowIds neighbor_position_ids = {};  // [b l k, r]; undefined: 0 .. r - 1
  int64_t chunk_length = 0;           // m, l = ceil(s / m); 0: the config's
  // In generation: Neighbors.
  int64_t first_chunk = 0;
  Tensor neighbor_slots = {};
};
// Under context parallelism s is the rank's part of the sequence (ContextParallel): position_ids
// are not left out, and document_starts are as context_parallel_attention() wants them.

// A decoder-only language model, or a chunk of it: GPT-2 and, by its config, Llama, GPT-NeoX and
// BLOOM (Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971), or the whole of a Retro
// (transformer/retro_config.h).
//
// Parameter names are Megatron Core's: embedding.word_embeddings.weight,
// decoder.layers.0.self_attention.linear_qkv.weight, ...
class GptModel final : public Module {
 public:
  // `config` is resolved and has padded_vocab_size. Parameters are undefined until initialize() or
  // a checkpoint fills them. With tied embeddings, a chunk that has only the head has a copy.
  GptModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
           Stream stream, const ContextParallel& cp = {});
  // The whole model on one rank.
  GptModel(const TransformerConfig& config, Stream stream);

  // Runs this chunk on the activations of the chunk before; the first chunk gets none. Returns
  // [s, b, h], [s/tp, b, h] with sequence parallelism; the last chunk ends with the final norm.
  // With `cached`, outside grad mode, the tokens [1, s] with their position_ids are those of its
  // rows: each sees the tokens of its own row, in the cache and here.
  Variable forward(const GptInput& input, const Variable& activations, RandomState& random,
                   CachedBatch* cached = nullptr) const;
  // What forward() begins with on the first chunk: the embedding of the tokens, [s, b, h] or
  // [s/tp, b, h].
  Variable embed(const GptInput& input, RandomState& random) const;
  // The same as forward() for the whole model.
  Variable hidden_states(const GptInput& input, RandomState& random) const {
    return forward(input, Variable(), random);
  }
  // The product that makes logits of the output of forward(). Without sequence parallelism hidden
  // may be a part of the positions.
  VocabularyProduct vocabulary_product(const Variable& hidden) const;
  // This rank's columns of the logits, [s, b, v/tp].
  Variable logits(const Variable& hidden) const {
    return logits_of(vocabulary_product(hidden), tp_);
  }

  // What this chunk receives from the one before and sends to the one after: hidden states of
  // sequences of that many tokens.
  ChunkBoundary boundary(int64_t micro_batch_size, int64_t seq_length) const;
  ChunkBoundary boundary(int64_t micro_batch_size) const {
    return boundary(micro_batch_size, config_.seq_length);
  }

  const TransformerConfig& config() const { return config_; }
  const ModelChunk& chunk() const { return chunk_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  const ContextParallel& context_parallel() const { return cp_; }
  // kernels/rotary.h; undefined without rotary positions.
  const Tensor& rotary_angles() const { return rotary_table_; }
  // Where the parameters are and the work is done.
  Stream stream() const { return stream_; }

 private:
  // The table of the tokens, whose dropout has this key.
  Variable looked_up(const RowIds& tokens, RowIds position_ids, DropoutKey dropout) const;

  TransformerConfig config_;
  ModelChunk chunk_;
  TensorParallel tp_;
  ContextParallel cp_;
  Stream stream_;
  uint64_t embedding_site_;
  uint64_t neighbor_embedding_site_;
  Tensor rotary_table_;

  // A group of its own, so that names read embedding.<part>.
  struct EmbeddingParts final : Module {
    EmbeddingParts(const TransformerConfig& config, const ModelChunk& chunk,
                   const TensorParallel& tp, Stream stream);
    VocabParallelEmbedding word_embeddings;
    std::optional<Embedding> position_embeddings;
    std::optional<Norm> norm;  // --embed-layernorm
  };
  std::optional<EmbeddingParts> embedding_;  // where the model begins, and copied where it ends
  TransformerBlock decoder_;
  std::optional<ColumnParallelLinear> output_layer_;  // untied embeddings only
};

// The parameters of a GPT, or of a chunk of it, in the order of the model and without memory. Their
// shardings say how tensor-parallel ranks divide them: spec.info.sharding.on_rank(rank, ranks).
std::vector<ParameterSpec> gpt_specs(const TransformerConfig& config);
std::vector<ParameterSpec> gpt_specs(const TransformerConfig& config, const ModelChunk& chunk);

// The training loss: the sum over the microbatch of loss_mask * loss, divided by the divisor. If
// that is undefined, it is the sum of loss_mask, or 1 if the sum is 0. The same on every
// tensor-parallel rank.
//   hidden from the chunk with the head
//   labels [b, s] int64 (see cross_entropy), loss_mask [b, s] and divisor [] fp32 on any device
//   seed   as for vocabulary_loss(): saves the memory of most logits
//   -> fp32 []
Variable gpt_loss(const GptModel& model, const Variable& hidden, const Tensor& labels,
                  const Tensor& loss_mask, const Tensor& divisor = {}, const Tensor& seed = {});

}  // namespace megatron
