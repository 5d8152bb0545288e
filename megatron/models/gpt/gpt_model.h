#pragma once

#include <optional>

#include "megatron/nn/layers.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/vocabulary.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {

// The tokens of a microbatch and where they stand, on the host or on the model's device. A chunk in
// the middle of the model needs no tokens.
struct GptInput {
  RowIds tokens = {};           // [b, s]
  RowIds position_ids = {};     // [b, s]; undefined: 0 .. s - 1, or after what the cache holds
  Tensor document_starts = {};  // [b, s] int32: token i sees [start, i]; undefined: all before it
};
// Under context parallelism s is the rank's part of the sequence (ContextParallel): position_ids
// are not left out, and document_starts are [2, b, s / 2], by chunk.

// A decoder-only language model, or a chunk of it: GPT-2 and, by its config, Llama, GPT-NeoX and
// BLOOM (Radford et al. 2019; Touvron et al. 2023, arXiv:2302.13971).
//
// Parameter names are Megatron Core's: embedding.word_embeddings.weight,
// decoder.layers.0.self_attention.linear_qkv.weight, ...
class GptModel final : public Module {
 public:
  // `config` is resolved and has padded_vocab_size. Parameters are undefined until initialize() or
  // a checkpoint fills them. Where embeddings are tied, a chunk with the head alone has a copy.
  GptModel(const TransformerConfig& config, const ModelChunk& chunk, const TensorParallel& tp,
           Stream stream, const ContextParallel& cp = {});
  // All of it on one rank.
  GptModel(const TransformerConfig& config, Stream stream);

  // What this chunk makes of the activations of the one before (undefined where the model begins):
  // [s, b, h], [s/tp, b, h] with sequence parallelism, after the final norm where the model ends.
  // With a cache (no grad mode) the tokens continue what it holds, and it grows by s.
  Variable forward(const GptInput& input, const Variable& activations, RandomState& random,
                   KvCache* cache = nullptr) const;
  // The same for the whole model.
  Variable hidden_states(const GptInput& input, RandomState& random,
                         KvCache* cache = nullptr) const {
    return forward(input, Variable(), random, cache);
  }
  // This rank's columns: hidden as forward() made it -> [s, b, v/tp]. Also for a part of the
  // positions where the sequence is whole.
  Variable logits(const Variable& hidden) const;

  const TransformerConfig& config() const { return config_; }
  const ModelChunk& chunk() const { return chunk_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  const ContextParallel& context_parallel() const { return cp_; }
  // Where the parameters are and the work is done.
  Stream stream() const { return stream_; }

 private:
  // `offset` is the position of the first token where the input does not say.
  Variable embed(const GptInput& input, int64_t offset, RandomState& random) const;

  TransformerConfig config_;
  ModelChunk chunk_;
  TensorParallel tp_;
  ContextParallel cp_;
  Stream stream_;
  uint64_t embedding_site_;
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

// What a language model is trained on: sum over the microbatch of loss_mask * loss, divided by the
// divisor: if that is undefined, the sum of loss_mask (1 where it is 0). The same on every
// tensor-parallel rank.
//   hidden as the chunk with the head made it
//   labels [b, s] int64 (see cross_entropy), loss_mask [b, s] and divisor [] fp32 on any device
//   -> fp32 []
Variable gpt_loss(const GptModel& model, const Variable& hidden, const Tensor& labels,
                  const Tensor& loss_mask, const Tensor& divisor = {});

}  // namespace megatron
