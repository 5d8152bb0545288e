#pragma once

#include <cstdint>

#include "megatron/data/gpt_batch.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/training/train_task.h"

namespace megatron {

// What the loss of a microbatch compares the model with, on the model's device.
struct GptTargets {
  Tensor labels;       // [b, s] int64
  Tensor loss_mask;    // [b, s] fp32: the weight of each token, 0 or 1 in usual training
  Tensor divisor;      // [] fp32; undefined: the sum of loss_mask
  Tensor seed = {};    // [] fp32: the gradient that training starts with (vocabulary_loss())
  Tensor weight = {};  // [] fp32: MicrobatchOutput::weight; may be undefined
};

// Builds the inputs of a chunk of a GPT, and runs the chunk.
class GptStep {
 public:
  struct Options {
    int64_t micro_batch_size = 0;
    bool reads_position_ids = false;  // positions or lengths differ from batch to batch
    bool weighs_tokens = false;       // --calculate-per-token-loss
  };

  // `model` and `random` must outlive it.
  GptStep(const GptModel& model, RandomState& random, const Options& options);

  // Takes what the chunk needs from a batch of whole sequences, and of it the rank's part: the
  // first chunk tokens, the last one labels, every chunk the starts of documents if tokens see no
  // other document, and the ends of prefixes. has_gradient: a backward pass follows. Throws
  // ShapeError naming an id that the model has no row for. Thread safe.
  Microbatch microbatch(const GptBatch& whole, bool has_gradient) const;
  // Is there anything to read?
  bool reads_data(bool has_attention_bounds) const;

  // The chunk's output for a microbatch() that is on the model's device: GptModel::forward().
  Variable forward(const Microbatch& batch, const Variable& activations) const;
  // Of such a microbatch, on the chunk that has the head.
  GptTargets targets(const Microbatch& batch) const;

 private:
  bool has_position_table() const;
  // Positions are read with each microbatch.
  bool reads_positions() const;

  const GptModel& model_;
  RandomState& random_;
  const Options options_;
  RowIds neighbor_positions_;  // of all microbatches of a Retro, likewise
  RowIds positions_;  // of all microbatches, on the model's device; undefined where they differ
};

}  // namespace megatron
