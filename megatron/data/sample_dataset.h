#pragma once

#include <cstdint>
#include <span>

namespace megatron {

// A numbered collection of training samples, each the same number of tokens long: seq_length inputs
// and one more, since labels are the inputs one step later. Reading is thread safe.
class SampleDataset {
 public:
  virtual ~SampleDataset() = default;

  virtual int64_t num_samples() const = 0;
  // Tokens of one sample: seq_length + 1.
  virtual int64_t sample_tokens() const = 0;
  // Throws Error unless 0 <= sample < num_samples(). REQUIRES: out.size() == sample_tokens().
  virtual void read(int64_t sample, std::span<int64_t> out) const = 0;
};

}  // namespace megatron
