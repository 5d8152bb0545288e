#pragma once

#include <cstdint>

#include "megatron/data/gpt_batch.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Next-token prediction by a chunk of a GPT: what it reads of a batch, and what it makes of it.
class GptStep {
 public:
  struct Options {
    int64_t micro_batch_size = 0;
    bool resets_position_ids = false;  // positions differ from batch to batch
  };

  // `model` and `random` must outlive it.
  GptStep(const GptModel& model, RandomState& random, const Options& options);

  // Tokens where the model begins, labels where it ends, borders of documents everywhere if they
  // matter; of whole sequences this rank's part. has_gradient: the microbatch is to be trained on.
  // Throws ShapeError naming an id that the model has no row for. Thread safe.
  Microbatch microbatch(const GptBatch& whole, bool has_gradient) const;
  // Is there anything to read?
  bool reads_data(bool has_document_starts) const;

  // On a microbatch() that is on the model's device.
  MicrobatchOutput forward(const Microbatch& batch, const Variable& activations) const;

 private:
  bool has_position_table() const;
  // Positions are read with each microbatch.
  bool reads_positions() const;

  const GptModel& model_;
  RandomState& random_;
  const Options options_;
  RowIds positions_;  // of all microbatches, on the model's device; undefined where they differ
};

}  // namespace megatron
