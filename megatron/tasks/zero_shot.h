#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "megatron/inference/model_step.h"
#include "megatron/tasks/text_rows.h"

// Scores rows of tokens with a GPT. Every rank of the model calls these functions with the same
// arguments and gets the same result. They throw ConfigError for an id that is not in the
// vocabulary and a row beyond the model's positions, Error if the model's logits are NaN.
namespace megatron {

struct RowBatches {
  int64_t rows_at_once = 1;
  // For progress: the rows of earlier batches, and their result so far, which the last stage of a
  // pipeline knows.
  std::function<void(int64_t batch, std::span<const TextRow> done, double result)> before_batch =
      {};
};

// The sum of -log p(label) over the labels of all rows.
double sum_of_losses(const InferenceModel& model, std::span<const TextRow> rows,
                     const RowBatches& batches);

// The number of rows in which every label is the most probable id given the true ids before it.
int64_t num_rows_predicted(const InferenceModel& model, std::span<const TextRow> rows,
                           const RowBatches& batches);

}  // namespace megatron
