#pragma once

#include <cstdint>
#include <optional>

#include "megatron/data/indexed_dataset.h"
#include "megatron/data/npy.h"
#include "megatron/data/split.h"

namespace megatron {

// How the sentences of documents are grouped into samples of BERT and T5.
struct SentenceIndexOptions {
  std::optional<int64_t> num_samples = {};  // in whole epochs, at least as many; empty: one epoch
  int64_t max_length = 0;                   // tokens of a sample; REQUIRES: at least 3
  double short_seq_prob = 0;                // fraction of samples with a shorter target
  int64_t min_sentences = 1;                // of a document, and of a sample that is not its last
  int64_t seed = 0;                         // REQUIRES: positive
};

// The samples in the order of training: row = first sentence, end (exclusive), target length in
// tokens. Equal to Megatron's sample_index.
//
//   narrow  [count, 3]  where sentence numbers fit in 32 bits
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

// Groups the sentences of documents [documents) of the data. A document with fewer than
// min_sentences sentences, or with several of which one is longer than 512 tokens, gives none.
// Throws ConfigError if no document gives a sample.
SentenceIndex build_sentence_index(const IndexedDataset& data, IndexRange documents,
                                   const SentenceIndexOptions& options);

}  // namespace megatron
