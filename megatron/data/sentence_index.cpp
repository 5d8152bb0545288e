#include "megatron/data/sentence_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr int64_t kMaxSentenceTokens = 512;

// Target lengths, drawn in order.
class Targets {
 public:
  explicit Targets(const SentenceIndexOptions& options)
      : max_length_(options.max_length),
        ratio_(options.short_seq_prob > 0
                   ? static_cast<uint32_t>(std::round(1.0 / options.short_seq_prob))
                   : 0),
        random_(static_cast<uint32_t>(options.seed)) {}

  int64_t next() {
    if (ratio_ == 0) return max_length_;
    const auto draw = static_cast<uint32_t>(random_());
    if (draw % ratio_ != 0) return max_length_;
    return 2 + draw % static_cast<uint32_t>(max_length_ - 1);
  }

 private:
  int64_t max_length_;
  uint32_t ratio_;
  std::mt19937 random_;
};

bool is_used(const IndexedDataset& data, int64_t begin, int64_t end, int64_t min_sentences) {
  if (end - begin < min_sentences || end == begin) return false;
  if (end - begin == 1) return true;
  for (int64_t s = begin; s < end; ++s) {
    if (data.length(s) > kMaxSentenceTokens) return false;
  }
  return true;
}

template <class T>
void add_document(const IndexedDataset& data, int64_t begin, int64_t end, int64_t min_sentences,
                  Targets& targets, std::vector<T>& rows) {
  int64_t start = begin;
  int64_t length = 0;
  int64_t target = targets.next();
  for (int64_t s = begin; s < end; ++s) {
    length += data.length(s);
    const int64_t left = end - s - 1;
    const bool is_full = length >= target && left > 1 && s + 1 - start >= min_sentences;
    if (!is_full && left > 0) continue;
    for (const int64_t value : {start, s + 1, target}) rows.push_back(static_cast<T>(value));
    start = s + 1;
    length = 0;
    target = targets.next();  // also after the last sample of a document
  }
}

// Fisher-Yates from the last row down. A draw is far cheaper than a cache miss, so partners are
// drawn ahead and prefetched.
template <class T>
void shuffle(std::vector<T>& rows, int64_t seed) {
  constexpr size_t kAhead = 64;
  std::mt19937_64 random(static_cast<uint64_t>(seed) + 1);
  std::array<T*, kAhead> partners;
  for (size_t left = rows.size() / 3; left > 1;) {
    const size_t count = std::min(left - 1, kAhead);
    for (size_t k = 0; k < count; ++k) {
      partners[k] = &rows[3 * (random() % (left - k))];
      __builtin_prefetch(partners[k], 1);
    }
    for (size_t k = 0; k < count; ++k) {
      std::swap_ranges(partners[k], partners[k] + 3, &rows[3 * (left - 1 - k)]);
    }
    left -= count;
  }
}

template <class T>
NpyArray<T> build_rows(const IndexedDataset& data, IndexRange documents,
                       const SentenceIndexOptions& options) {
  Targets targets(options);
  std::vector<T> rows;
  const int64_t wanted = options.num_samples.value_or(0);
  int64_t count = 0;
  do {
    for (int64_t d = documents.begin; d < documents.end; ++d) {
      const int64_t begin = data.document_start(d);
      const int64_t end = data.document_start(d + 1);
      if (is_used(data, begin, end, options.min_sentences)) {
        add_document(data, begin, end, options.min_sentences, targets, rows);
      }
    }
    const int64_t before = std::exchange(count, std::ssize(rows) / 3);
    if (count == before) {
      throw ConfigError(fmt::format(
          "{}: none of documents {} to {} has {} sentences or more of at most {} tokens; "
          "preprocess "
          "the text with --split-sentences, change --split, or ask for no samples (--eval-iters 0)",
          data.prefix().string(), documents.begin, documents.end, options.min_sentences,
          kMaxSentenceTokens));
    }
    // All epochs are about as long as the first.
    if (before == 0) rows.reserve(static_cast<size_t>(3 * (std::max(wanted, count) + 2 * count)));
  } while (count < wanted);
  shuffle(rows, options.seed);
  return NpyArray<T>(std::move(rows), {count, 3});
}

}  // namespace

SentenceIndex::Row SentenceIndex::row(int64_t sample) const {
  const auto at = [&](int64_t column) {
    const int64_t i = 3 * sample + column;
    return narrow.empty() ? static_cast<int64_t>(wide[i]) : static_cast<int64_t>(narrow[i]);
  };
  return {at(0), at(1), at(2)};
}

SentenceIndex build_sentence_index(const IndexedDataset& data, IndexRange documents,
                                   const SentenceIndexOptions& options) {
  invariant(options.max_length >= 3, "a sample has room for three tokens");
  invariant(options.seed > 0, "the seed is positive");
  SentenceIndex index;
  if (data.num_sequences() > std::numeric_limits<uint32_t>::max()) {
    index.wide = build_rows<uint64_t>(data, documents, options);
  } else {
    index.narrow = build_rows<uint32_t>(data, documents, options);
  }
  return index;
}

}  // namespace megatron
