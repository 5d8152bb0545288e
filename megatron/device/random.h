#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/device/host_device.h"

namespace megatron {

// A 64-bit hash of a name (FNV-1a), stable across builds and machines. On disk: never change.
uint64_t hash_of(std::string_view name);

// The elements that a dropout keeps. Element (i, k) of sample j of a site is kept if half k % 8,
// counted from the lower half of word 0, of philox<7>({k / 8, i, j low, j high}, key) is below
// keep_threshold(). i counts the rows of the unsharded tensor within one sample, so the mask does
// not depend on micro-batch size, recompute, or the sharding of the model. Attention draws as many
// bits in the order that its kernels use (kernels/dropout_bits.h, kernels/attention_dropout.h).
struct DropoutKey {
  uint64_t key = 0;
  int64_t first_sample = 0;  // global index of the microbatch's first sample
  float probability = 0;     // of dropping, in [0, 1)
  int64_t first_row = 0;     // i of this rank's first row
  // If this rank's part is two runs of rows: i jumps by `gap` at row `gap_at` of the part.
  int64_t gap_at = 0;
  int64_t gap = 0;
  // Added to first_sample; in memory of the device that computes the mask, which reads it then.
  // Null: 0.
  const int64_t* more_samples = nullptr;
  // Sequences of each sample, which have masks of their own: j counts them (RandomState::of_parts).
  int64_t parts_of_sample = 1;

  // i of a row of the part.
  MG_HOST_DEVICE int64_t row(int64_t in_part) const {
    return first_row + in_part + (in_part >= gap_at ? gap : 0);
  }
  // j of a sample of the microbatch, or of a part. Call on the device that has more_samples.
  MG_HOST_DEVICE int64_t sample(int64_t in_batch) const {
    const int64_t first = first_sample + (more_samples == nullptr ? 0 : *more_samples);
    return first * parts_of_sample + in_batch;
  }
  MG_HOST_DEVICE bool is_active() const { return probability > 0; }
  MG_HOST_DEVICE float scale() const { return 1.0f / (1.0f - probability); }
  // Threshold on 16 random bits; smaller values are kept: (1 - probability) * 2^16, rounded.
  uint32_t keep_threshold() const;
};

// The random state of one rank's model: the seed and the position in the data, which determine
// every mask. The position is set before each microbatch; recompute saves and restores it.
class RandomState {
 public:
  explicit RandomState(uint64_t seed) : seed_(seed) {}

  uint64_t seed() const { return seed_; }
  int64_t first_sample() const { return first_sample_; }
  bool is_training() const { return training_; }

  // Sets the index, in the order of training data, of the microbatch's first sample.
  void set_first_sample(int64_t index) {
    first_sample_ = index;
    first_sample_at_ = nullptr;
  }
  // The same with an index in memory of the model's device, so that recorded work can run again for
  // another microbatch.
  void set_first_sample_at(const int64_t* memory) {
    first_sample_ = 0;
    first_sample_at_ = memory;
  }
  // For tensors [s, b n, h] that hold n sequences of each sample, one after the other.
  RandomState of_parts(int64_t n) const {
    RandomState parts = *this;
    parts.parts_of_sample_ *= n;
    return parts;
  }
  // Dropout is the identity outside training.
  void set_training(bool training) { training_ = training; }

  // The key of a dropout site, named by the module's canonical name, for the current microbatch.
  // Inactive outside training.
  DropoutKey dropout_key(uint64_t site, float probability) const;

 private:
  uint64_t seed_;
  int64_t first_sample_ = 0;
  const int64_t* first_sample_at_ = nullptr;  // DropoutKey::more_samples
  int64_t parts_of_sample_ = 1;
  bool training_ = true;
};

}  // namespace megatron
