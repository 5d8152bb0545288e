#include "megatron/data/prefix_lm.h"

#include <algorithm>
#include <vector>

#include "megatron/device/philox.h"
#include "megatron/device/random.h"

namespace megatron {
namespace {

// A pseudo-random number in [1, most], a function of the document's position in the run.
int64_t drawn_length(int64_t most, int64_t sample, int64_t document, Split split, uint64_t key) {
  const auto words = philox(
      {static_cast<uint32_t>(document), static_cast<uint32_t>(split), static_cast<uint32_t>(sample),
       static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32)},
      key);
  return 1 + static_cast<int64_t>(uint64_t{words[0]} * static_cast<uint64_t>(most) >> 32);
}

double position_weight(int64_t position, int64_t s) {
  return 2.0 * static_cast<double>(s - position) / static_cast<double>(s + 1);
}

// The expected number of a sequence's tokens in the loss, over the lengths of its prefix.
double counted_tokens(int64_t s, const PrefixOptions& options) {
  if (!options.loss_on_targets_only) return static_cast<double>(s);
  if (!options.reweight_loss) return static_cast<double>(s + 1) / 2;
  double sum = 0;
  double total = 0;
  for (int64_t position = s - 1; position >= 0; --position) {
    sum += position_weight(position, s);
    total += sum;
  }
  return total / static_cast<double>(s);
}

}  // namespace

void add_prefixes(GptBatch& batch, Split split, const PrefixOptions& options) {
  const int64_t s = batch.seq_length;
  const uint64_t key = mixed_key(options.seed, hash_of("prefix lm"));
  batch.prefix_ends.assign(batch.tokens.size(), 0);
  for (int64_t row = 0; row < batch.micro_batch_size; ++row) {
    const int64_t* const tokens = batch.tokens.data() + row * s;
    int32_t* const ends = batch.prefix_ends.data() + row * s;
    float* const weights = batch.loss_mask.data() + row * s;
    int64_t document = 0;
    for (int64_t start = 0; start < s; ++document) {
      const int64_t end =
          options.per_document ? std::find(tokens + start, tokens + s, options.eod) - tokens : s;
      if (end > start) {
        const int64_t prefix_end =
            start + drawn_length(end - start, batch.first_sample + row, document, split, key);
        std::fill(ends + start, ends + prefix_end, static_cast<int32_t>(prefix_end));
        if (options.loss_on_targets_only) {
          std::fill(weights + start, weights + prefix_end - 1, 0.0F);
        }
      }
      start = end + 1;
    }
    for (int64_t i = 0; options.reweight_loss && i < s; ++i) {
      weights[i] *= static_cast<float>(position_weight(i, s));
    }
  }
  batch.loss_divisor =
      static_cast<float>(static_cast<double>(batch.micro_batch_size) * counted_tokens(s, options));
}

}  // namespace megatron
