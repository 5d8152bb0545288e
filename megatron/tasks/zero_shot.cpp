#include "megatron/tasks/zero_shot.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/sampler.h"
#include "megatron/ops/embedding.h"

namespace megatron {
namespace {

// A batch of rows of unequal length. Padding follows a row's tokens, which cannot attend to it.
struct Batch {
  std::span<const TextRow> rows;
  int64_t length = 0;  // inputs of the longest row

  int64_t size() const { return static_cast<int64_t>(rows.size()); }
};

// ids[first .. first + count) of each row: [b, count].
Tensor columns(const Batch& batch, int64_t first, int64_t count) {
  std::vector<int64_t> values;
  for (const TextRow& row : batch.rows) {
    for (int64_t i = first; i < first + count; ++i) {
      values.push_back(i < std::ssize(row.ids) ? row.ids[static_cast<size_t>(i)] : 0);
    }
  }
  return tensor_of(values, {batch.size(), count});
}

// Calls f with each batch and the hidden states [s, b, h] of its inputs; it adds to `result`.
void for_each_batch(const InferenceModel& model, std::span<const TextRow> rows,
                    const RowBatches& batches, const double& result,
                    const std::function<void(const Batch&, const Tensor& hidden)>& f) {
  const TransformerConfig& config = model.config();
  const NoGrad no_grad;
  const auto width = static_cast<size_t>(batches.rows_at_once);
  for (size_t begin = 0; begin < rows.size(); begin += width) {
    if (batches.before_batch) {
      batches.before_batch(static_cast<int64_t>(begin / width), rows.first(begin), result);
    }
    Batch batch = {rows.subspan(begin, std::min(width, rows.size() - begin))};
    for (const TextRow& row : batch.rows) {
      invariant(row.first_label > 0 && row.num_labels() > 0,
                "a row has a label and what it follows");
      check_ids(row.ids, config.counted_vocab_size());
      batch.length = std::max(batch.length, std::ssize(row.ids) - 1);
    }
    check_length(batch.length, 0, config);
    const Variable hidden = run_stages(model, {.tokens = columns(batch, 0, batch.length)}, nullptr);
    f(batch, model.parallel.is_last_stage() ? hidden.data() : Tensor());
  }
}

double shared(const InferenceModel& model, double value) {
  std::vector<double> values = {value};
  share(model, values);
  return values[0];
}

}  // namespace

double sum_of_losses(const InferenceModel& model, std::span<const TextRow> rows,
                     const RowBatches& batches) {
  double sum = 0;
  for_each_batch(model, rows, batches, sum, [&](const Batch& batch, const Tensor& hidden) {
    const int64_t first = std::ranges::min(batch.rows, {}, &TextRow::first_label).first_label;
    const int64_t count = batch.length + 1 - first;
    const Tensor asked = hidden.defined() ? hidden.slice(first - 1, count) : hidden;
    const Tensor found = forced_log_probabilities(model, asked, columns(batch, first, count));
    if (!found.defined()) return;
    const auto values = found.span<float>();  // [count, b]
    for (int64_t b = 0; b < batch.size(); ++b) {
      const TextRow& row = batch.rows[static_cast<size_t>(b)];
      for (int64_t i = row.first_label; i < std::ssize(row.ids); ++i) {
        sum -= values[static_cast<size_t>((i - first) * batch.size() + b)];
      }
    }
  });
  sum = shared(model, sum);
  if (std::isnan(sum)) throw Error(kNotANumber);
  return sum;
}

int64_t num_rows_predicted(const InferenceModel& model, std::span<const TextRow> rows,
                           const RowBatches& batches) {
  double count = 0;
  for_each_batch(model, rows, batches, count, [&](const Batch& batch, const Tensor& hidden) {
    if (!hidden.defined()) return;
    std::vector<int64_t> places;  // of the labels' predictions in hidden [s * b, h]
    for (int64_t b = 0; b < batch.size(); ++b) {
      const TextRow& row = batch.rows[static_cast<size_t>(b)];
      for (int64_t i = row.first_label; i < std::ssize(row.ids); ++i) {
        places.push_back((i - 1) * batch.size() + b);
      }
    }
    const Variable table(hidden.reshape({hidden.size(0) * hidden.size(1), hidden.size(2)}));
    const Tensor asked = embedding(table, tensor_of(places, {1, std::ssize(places)})).data();
    const Tensor logits = on_host(gathered_logits(model, asked));
    if (!logits.defined()) return;
    int64_t at = 0;
    for (const TextRow& row : batch.rows) {
      bool is_right = true;
      for (int64_t i = row.first_label; i < std::ssize(row.ids); ++i, ++at) {
        const auto known = logits.slice(at, 1).span<float>().first(
            static_cast<size_t>(model.config().counted_vocab_size()));
        if (std::ranges::any_of(known, [](float x) { return std::isnan(x); })) {
          throw Error(kNotANumber);
        }
        const auto best = std::ranges::max_element(known);
        is_right = is_right && best - known.begin() == row.ids[static_cast<size_t>(i)];
      }
      count += is_right ? 1 : 0;
    }
  });
  return static_cast<int64_t>(shared(model, count));
}

}  // namespace megatron
