#pragma once

#include <cstdint>
#include <span>

#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"

namespace megatron {

// The synthetic samples of --mock-data, equal to those of Megatron-LM core_r0.5.0: a run of ones of
// random length, the end-of-document id 0, and twos. Needs no files; the vocabulary must have 3
// ids.
class MockGptDataset final : public SampleDataset {
 public:
  MockGptDataset(Split split, int64_t seq_length);

  int64_t num_samples() const override { return 32767; }
  int64_t sample_size() const override { return seq_length_ + 1; }
  void read(int64_t sample, std::span<int64_t> out) const override;

 private:
  uint64_t split_number_;
  int64_t seq_length_;
};

}  // namespace megatron
