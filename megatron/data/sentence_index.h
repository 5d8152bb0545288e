#pragma once

#include <cstdint>
#include <optional>

#include "megatron/data/indexed_dataset.h"
#include "megatron/data/npy.h"
#include "megatron/data/split.h"

namespace megatron {

// Parameters for grouping sentences of documents into samples of BERT and T5.
struct SentenceIndexOptions {
  std::optional<int64_t> num_samples = {};  // minimum, in whole epochs; empty: one epoch
  int64_t max_length = 0;                   // tokens of a sample; REQUIRES: at least 3
  double short_seq_prob = 0;                // fraction of samples with a shorter target
  int64_t min_sentences = 1;                // of a document, and of every sample except its last
  int64_t seed = 0;                         // REQUIRES: positive
};

// The samples in training order: row = first sentence, end (exclusive), target length in tokens.
// Equal to Megatron's sample_index.
//
//   narrow  [count, 3]  if sentence numbers fit in 32 bits
//   wide    [count, 3]  otherwise
struct SentenceIndex {
  NpyArray<uint32_t> narrow;
  NpyArray<uint64_t> wide;

  struct Row {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t target = 0;
  };
  int64_t num_samples() const { return (narrow.size() + wide.size()) / 3; }
  // REQUIRES: 0 <= sample < num_samples().
  Row row(int64_t sample) const;
};

// Groups the sentences of documents [documents) of the data. A document gives no sample if it has
// fewer than min_sentences sentences, or several sentences and one longer than 512 tokens. Throws
// ConfigError if no document gives a sample.
SentenceIndex build_sentence_index(const IndexedDataset& data, IndexRange documents,
                                   const SentenceIndexOptions& options);

}  // namespace megatron
