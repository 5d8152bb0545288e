#include "megatron/data/mock_gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron/core/error.h"
#include "megatron/data/numpy_random.h"

namespace megatron {

MockGptDataset::MockGptDataset(Split split, int64_t seq_length)
    : split_number_(static_cast<uint64_t>(split)), seq_length_(seq_length) {}

void MockGptDataset::read(int64_t sample, std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == sample_size(), "out has room for one sample");
  if (sample < 0 || sample >= num_samples()) {
    throw Error(fmt::format("mock sample {} is outside [0, {})", sample, num_samples()));
  }
  const std::array<uint64_t, 2> seeds = {split_number_, static_cast<uint64_t>(sample)};
  const int64_t ones = NumpyGenerator(seeds).integers(0, seq_length_);
  out[0] = ones;
  const auto eod = out.begin() + 1 + ones;
  std::fill(out.begin() + 1, eod, int64_t{1});
  *eod = 0;
  std::fill(eod + 1, out.end(), int64_t{2});
}

}  // namespace megatron
