#include "megatron/data/gpt_batch.h"

#include <algorithm>
#include <numeric>

namespace megatron {
namespace {

// Applies `options` to row `row` of the batch, whose tokens are already set.
void apply_document_rules(GptBatch& batch, int64_t row, const GptSampleOptions& options) {
  const int64_t s = batch.seq_length;
  const auto first = static_cast<size_t>(row * s);
  int64_t document_start = 0;
  for (int64_t i = 0; i < s; ++i) {
    const size_t at = first + static_cast<size_t>(i);
    const bool is_eod = batch.tokens[at] == options.eod;
    if (options.reset_position_ids) batch.position_ids[at] = i - document_start;
    if (options.reset_attention_mask) {
      batch.document_starts[at] = static_cast<int32_t>(document_start);
    }
    if (options.eod_mask_loss && is_eod) batch.loss_mask[at] = 0.0F;
    if (is_eod) document_start = i + 1;  // the eod belongs to its document
  }
}

// [b, s] -> [b, chunks * length].
template <class T>
std::vector<T> cut(const std::vector<T>& rows, int64_t s, std::span<const int64_t> chunks,
                   int64_t length) {
  std::vector<T> part;
  for (auto row = rows.begin(); row != rows.end(); row += s) {
    for (const int64_t chunk : chunks) {
      part.insert(part.end(), row + chunk * length, row + (chunk + 1) * length);
    }
  }
  return part;
}

}  // namespace

GptBatch make_gpt_batch(const SampleDataset& dataset, const SampleGroup& group,
                        const GptSampleOptions& options) {
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t s = dataset.sample_size() - options.neighbor_tokens - 1;
  const auto size = static_cast<size_t>(b * s);
  GptBatch batch{.micro_batch_size = b,
                 .seq_length = s,
                 .tokens = std::vector<int64_t>(size),
                 .labels = std::vector<int64_t>(size),
                 .loss_mask = std::vector<float>(size, 1.0F),
                 .position_ids = std::vector<int64_t>(size),
                 .document_starts = std::vector<int32_t>(options.reset_attention_mask ? size : 0),
                 .first_sample = group.first_sample};

  const bool has_rules =
      options.eod_mask_loss || options.reset_position_ids || options.reset_attention_mask;
  std::vector<int64_t> sample(static_cast<size_t>(dataset.sample_size()));
  for (int64_t row = 0; row < b; ++row) {
    dataset.read(group.indices[static_cast<size_t>(row)], sample);
    const int64_t first = row * s;
    std::copy_n(sample.begin(), s, batch.tokens.begin() + first);
    std::copy_n(sample.begin() + 1, s, batch.labels.begin() + first);
    batch.neighbor_tokens.insert(batch.neighbor_tokens.end(), sample.begin() + s + 1, sample.end());
    const auto positions = batch.position_ids.begin() + first;
    std::iota(positions, positions + s, int64_t{0});
    if (has_rules) apply_document_rules(batch, row, options);
  }
  return batch;
}

GptBatch first_tokens(const GptBatch& batch, int64_t length) {
  constexpr int64_t kFirst[] = {0};
  const auto part = [&](const auto& rows) { return cut(rows, batch.seq_length, kFirst, length); };
  return {.micro_batch_size = batch.micro_batch_size,
          .seq_length = length,
          .tokens = part(batch.tokens),
          .labels = part(batch.labels),
          .loss_mask = part(batch.loss_mask),
          .position_ids = part(batch.position_ids),
          .document_starts = part(batch.document_starts),
          .prefix_ends = part(batch.prefix_ends),
          .loss_divisor = batch.loss_divisor,
          .first_sample = batch.first_sample};
}

GptBatch shifted_by_one(GptBatch batch) {
  const auto shift = [&](auto& rows) {
    for (auto row = rows.begin(); row != rows.end(); row += batch.seq_length) {
      std::copy(row + 1, row + batch.seq_length, row);
      row[batch.seq_length - 1] = 0;
    }
  };
  shift(batch.tokens);
  shift(batch.labels);
  shift(batch.loss_mask);
  shift(batch.position_ids);
  return batch;
}

GptBatch chunks_of(const GptBatch& batch, std::span<const int64_t> chunks, int64_t num_chunks) {
  const int64_t s = batch.seq_length;
  const int64_t length = s / num_chunks;
  const auto count = static_cast<int64_t>(chunks.size());
  GptBatch part{.micro_batch_size = batch.micro_batch_size,
                .seq_length = count * length,
                .tokens = cut(batch.tokens, s, chunks, length),
                .labels = cut(batch.labels, s, chunks, length),
                .loss_mask = cut(batch.loss_mask, s, chunks, length),
                .position_ids = cut(batch.position_ids, s, chunks, length),
                .document_starts = {},
                .first_sample = batch.first_sample};
  for (size_t i = 0; i < chunks.size() && !batch.document_starts.empty(); ++i) {
    const std::vector<int32_t> starts = cut(batch.document_starts, s, chunks.subspan(i, 1), length);
    part.document_starts.insert(part.document_starts.end(), starts.begin(), starts.end());
  }
  const float sum = std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), 0.0F);
  const float total = batch.loss_divisor > 0 ? batch.loss_divisor : std::max(sum, 1.0F);
  part.loss_divisor = total * static_cast<float>(count) / static_cast<float>(num_chunks);
  return part;
}

}  // namespace megatron
