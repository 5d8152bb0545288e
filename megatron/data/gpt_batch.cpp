#include "megatron/data/gpt_batch.h"

#include <algorithm>
#include <numeric>

namespace megatron {
namespace {

// Applies `options` to row `row` of the batch, whose tokens are in place.
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
    if (is_eod) document_start = i + 1;  // the eod itself still belongs to its document
  }
}

}  // namespace

GptBatch make_gpt_batch(const SampleDataset& dataset, const SampleGroup& group,
                        const GptSampleOptions& options) {
  const auto b = static_cast<int64_t>(group.indices.size());
  const int64_t s = dataset.sample_tokens() - 1;
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
  std::vector<int64_t> sample(static_cast<size_t>(s + 1));
  for (int64_t row = 0; row < b; ++row) {
    dataset.read(group.indices[static_cast<size_t>(row)], sample);
    const int64_t first = row * s;
    std::copy_n(sample.begin(), s, batch.tokens.begin() + first);
    std::copy_n(sample.begin() + 1, s, batch.labels.begin() + first);
    const auto positions = batch.position_ids.begin() + first;
    std::iota(positions, positions + s, int64_t{0});
    if (has_rules) apply_document_rules(batch, row, options);
  }
  return batch;
}

}  // namespace megatron
