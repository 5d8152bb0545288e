#pragma once

#include <cstdint>
#include <optional>

#include "megatron/data/indexed_dataset.h"
#include "megatron/data/npy.h"
#include "megatron/data/split.h"

namespace megatron {

// The number of passes over a split for the requested samples.
struct EpochPlan {
  int64_t tokens_per_epoch = 0;
  int64_t num_epochs = 0;
  int64_t num_samples = 0;  // all whole samples of those epochs, at least the requested number
  // If only part of the last epoch is needed, it is shuffled separately; then this many samples
  // come from earlier epochs.
  bool separate_last_epoch = false;
  int64_t num_samples_before_last_epoch = 0;
};

// The fewest epochs that give num_samples samples of seq_length + 1 tokens (adjacent samples share
// one token); one epoch if num_samples is empty. REQUIRES: tokens_per_epoch > 0, seq_length > 0.
EpochPlan plan_epochs(int64_t tokens_per_epoch, std::optional<int64_t> num_samples,
                      int64_t seq_length);

// Locates each sample of one split of one dataset. Three arrays, equal to Megatron's:
//
//   document_index  [epochs * sequences]  sequences in the order of concatenation
//   sample_index    [num_samples + 1, 2]  first token of each sample: position in document_index,
//                                         offset in that sequence
//   shuffle_index   [num_samples]         sample_index rows in the order of training
struct GptIndex {
  NpyArray<int32_t> document_index;
  NpyArray<int32_t> sample_index;
  NpyArray<int64_t> wide_sample_index;  // instead, if a position needs more than 31 bits
  NpyArray<uint32_t> shuffle_index;
  NpyArray<int64_t> wide_shuffle_index;  // instead, from 2^32 - 2 samples on

  struct Position {
    int64_t document;  // index into document_index
    int64_t offset;    // tokens
  };
  // REQUIRES: 0 <= row <= num_samples().
  Position position(int64_t row) const;
  // Row of sample number `sample` in the reading order. REQUIRES: 0 <= sample < num_samples().
  int64_t shuffled(int64_t sample) const;
  int64_t num_samples() const { return shuffle_index.size() + wide_shuffle_index.size(); }
  int64_t num_positions() const { return (sample_index.size() + wide_sample_index.size()) / 2; }
};

// Number of tokens in a range of sequences. REQUIRES: the range is inside the dataset.
int64_t count_tokens(const IndexedDataset& data, IndexRange sequences);

// The size in bytes of the index of these sequences.
int64_t index_bytes(IndexRange sequences, const EpochPlan& plan);

// Builds the index of these sequences, in time and memory proportional to the number of samples and
// sequences. Throws Unsupported for sequence numbers above 2^31 - 1.
// REQUIRES: plan = plan_epochs(count_tokens(data, sequences), ...) with this seq_length.
GptIndex build_gpt_index(const IndexedDataset& data, IndexRange sequences, const EpochPlan& plan,
                         int64_t seq_length, int64_t seed);

}  // namespace megatron
