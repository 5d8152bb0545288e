#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/device/random.h"
#include "megatron/nn/module.h"
#include "megatron/ops/embedding.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/pipeline/boundary.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The tokens k positions further on, the inputs of depth k of multi-token prediction. Positions
// beyond the end of a sequence have token 0 and position 0.
struct FutureTokens {
  RowIds tokens = {};        // [b, s]
  RowIds position_ids = {};  // [b, s]; undefined without a table of positions
};

// The inputs of a microbatch, on the host or on the model's device. Models and chunks ignore inputs
// that they do not need: only a chunk that embeds tokens reads them.
struct ModelInput {
  RowIds tokens = {};           // [b, s], of an encoder and decoder those of the encoder
  RowIds position_ids = {};     // [b, s]; undefined: 0 .. s - 1
  RowIds token_types = {};      // BERT: [b, s], 0 or 1; undefined for a model without token types
  Tensor padding_mask = {};     // encoders: [b, s] bool, true hides a token; undefined: none
  Tensor document_starts = {};  // GPT: [b, s] int32: token i sees [start, i]; undefined: all before
  Tensor prefix_ends = {};      // GPT: [b, s] int32: token i also sees [i, end); undefined: none
  // GPT: of depth 1, 2, .. on the chunk with the head; empty: only the next token is predicted.
  std::vector<FutureTokens> future = {};
  RowIds decoder_tokens = {};        // T5: [b, sd]
  RowIds decoder_position_ids = {};  // T5: [b, sd]; undefined: 0 .. sd - 1
  // Retro: the tokens of k neighbours of l chunks. Undefined: the model reads none.
  RowIds neighbor_tokens = {};        // [b l k, r], row (sample l + chunk) k + neighbour
  RowIds neighbor_position_ids = {};  // [b l k, r]; undefined: 0 .. r - 1
  Tensor chunk_rows = {};  // [m, 0] of any dtype, l = ceil(s / m); undefined: m is the config's
  // Retro's generation, as in Neighbors.
  int64_t first_chunk = 0;
  Tensor neighbor_slots = {};
  // Receives the auxiliary losses of the chunk's layers (ForwardContext); null: they compute none.
  std::vector<Variable>* auxiliary_losses = nullptr;

  // The tensors, for Microbatch.
  std::vector<Tensor*> tensors();
};
// Under context parallelism s is the rank's part of the sequence (ContextParallel): position_ids
// are not left out, and document_starts are as context_parallel_attention() wants them.

// Targets of the tokens of a microbatch, on any device.
struct TokenTargets {
  Tensor labels;          // [b, s] int64 (see cross_entropy)
  Tensor loss_mask;       // [b, s] fp32: the weight of each token, 0 or 1 in usual training
  Tensor divisor = {};    // [] fp32; undefined: the sum of loss_mask, or 1 if the sum is 0
  Tensor weight = {};     // [] fp32: MicrobatchOutput::weight; may be undefined
  Tensor is_random = {};  // BERT's binary head: [b] int64, 1: the parts are exchanged
  // [] fp32: the gradient that training starts with (vocabulary_loss()): saves the memory of most
  // logits. The same for all microbatches of an iteration.
  Tensor seed = {};

  // All but the seed, for Microbatch.
  std::vector<Tensor*> tensors();
};

// The ends of the model that a chunk contains.
struct ChunkEnds {
  bool embeds_tokens = true;           // ModelInput::tokens
  bool embeds_decoder_tokens = false;  // ModelInput::decoder_tokens
  bool has_head = true;                // final norm, logits, loss

  bool is_whole() const { return embeds_tokens && has_head; }
};

// A language model, or a chunk of it in a pipeline, on this rank.
class Model : public Module {
 public:
  // Runs this chunk on the activations of the chunk before; the first chunk gets none. Returns the
  // activations for the next chunk, each [s, b, h], or [s/tp, b, h] with sequence parallelism; the
  // chunk with the head returns the hidden states after the final norm last.
  virtual Activations forward(const ModelInput& input, std::span<const Variable> activations,
                              RandomState& random) const = 0;
  // The hidden states of the head, of a whole model.
  Variable hidden_states(const ModelInput& input, RandomState& random) const {
    return forward(input, {}, random).back();
  }

  // The product that makes logits of the hidden states. Without sequence parallelism they may be a
  // part of the positions. REQUIRES: the chunk has a head for tokens.
  virtual VocabularyProduct vocabulary_product(const Variable& hidden) const = 0;
  // This rank's columns of the logits, [s, b, v/tp].
  Variable logits(const Variable& hidden) const {
    return logits_of(vocabulary_product(hidden), tp_);
  }

  // Activations that this chunk receives and sends, for sequences of seq_length tokens; a T5's
  // decoder has decoder_seq_length.
  virtual ChunkBoundary boundary(int64_t micro_batch_size, int64_t seq_length) const = 0;

  // This chunk's layers with a KvCache; none in an encoder.
  virtual ModelChunk cached_layers() const = 0;

  const TransformerConfig& config() const { return config_; }
  const ChunkEnds& ends() const { return ends_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  // Device of the parameters, and stream of the computation.
  Stream stream() const { return stream_; }

 protected:
  Model(const TransformerConfig& config, const ChunkEnds& ends, const TensorParallel& tp,
        Stream stream)
      : config_(config), ends_(ends), tp_(tp), stream_(stream) {}

  // Hidden states of seq_length tokens between two chunks.
  TensorSpec states_of(int64_t micro_batch_size, int64_t seq_length, DType dtype) const;

  TransformerConfig config_;
  ChunkEnds ends_;
  TensorParallel tp_;
  Stream stream_;
};

// The dtype of hidden states between the layers of a stack.
DType residual_dtype(const TransformerConfig& config);

// The training loss: the sum over the microbatch of loss_mask * loss, divided by the divisor. The
// same on every tensor-parallel rank. `hidden` is from the chunk with the head.
//   -> fp32 []
Variable token_loss(const Model& model, const Variable& hidden, const TokenTargets& targets);
// The same for other logits than vocabulary_product(hidden).
Variable token_loss(const Model& model, const VocabularyProduct& logits,
                    const TokenTargets& targets);

}  // namespace megatron
