#pragma once

#include <cstdint>
#include <span>

namespace megatron {

// A numbered collection of training samples, all with the same number of integers. The class of the
// dataset defines their layout: GPT samples are seq_length + 1 tokens (labels are the inputs one
// step later), those of BERT and T5 hold several rows. Reading is thread safe.
class SampleDataset {
 public:
  virtual ~SampleDataset() = default;

  virtual int64_t num_samples() const = 0;
  // Integers in one sample.
  virtual int64_t sample_size() const = 0;
  // Throws Error unless 0 <= sample < num_samples(). REQUIRES: out.size() == sample_size().
  virtual void read(int64_t sample, std::span<int64_t> out) const = 0;
};

}  // namespace megatron
