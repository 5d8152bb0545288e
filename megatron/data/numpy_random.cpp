#include "megatron/data/numpy_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// A draw is far cheaper than a cache miss, so a shuffle draws this many partners ahead and
// prefetches them before it swaps the first.
constexpr size_t kShuffleAhead = 64;

}  // namespace

NumpyRandom::NumpyRandom(uint32_t seed) {
  state_[0] = seed;
  for (uint32_t i = 1; i < kStateSize; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
}

// All 624 outputs at once: the loops have no branches, so the compiler vectorises most of them.
void NumpyRandom::refill() {
  constexpr int kShift = 397;
  const auto twist = [](uint32_t high, uint32_t low) {
    const uint32_t bits = (high & 0x80000000U) | (low & 0x7fffffffU);
    return (bits >> 1) ^ ((bits & 1U) != 0 ? 0x9908b0dfU : 0U);
  };
  uint32_t* s = state_.data();
  for (int i = 0; i < kStateSize - kShift; ++i) s[i] = s[i + kShift] ^ twist(s[i], s[i + 1]);
  for (int i = kStateSize - kShift; i < kStateSize - 1; ++i) {
    s[i] = s[i + kShift - kStateSize] ^ twist(s[i], s[i + 1]);
  }
  s[kStateSize - 1] = s[kShift - 1] ^ twist(s[kStateSize - 1], s[0]);
  for (size_t i = 0; i < kStateSize; ++i) {
    uint32_t y = state_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    outputs_[i] = y ^ (y >> 18);
  }
  position_ = 0;
}

uint32_t NumpyRandom::next() {
  if (position_ == kStateSize) refill();
  return outputs_[static_cast<size_t>(position_++)];
}

uint64_t NumpyRandom::interval(uint64_t max) {
  if (max == 0) return 0;
  const uint64_t mask = std::numeric_limits<uint64_t>::max() >> std::countl_zero(max);
  uint64_t value = 0;
  do {
    value = next();
    if (max > std::numeric_limits<uint32_t>::max()) value = (value << 32) | next();
    value &= mask;
  } while (value > max);
  return value;
}

double NumpyRandom::random() {
  const uint32_t high = next() >> 5;
  const uint32_t low = next() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

int64_t NumpyRandom::randint(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(interval(static_cast<uint64_t>(high - 1 - low)));
}

int64_t NumpyRandom::choice(std::span<const double> probabilities) {
  std::vector<double> cumulative(probabilities.size());
  std::partial_sum(probabilities.begin(), probabilities.end(), cumulative.begin());
  const double total = cumulative.back();
  for (double& value : cumulative) value /= total;
  const double u = random();
  return std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
}

int64_t NumpyRandom::geometric(double p) {
  return static_cast<int64_t>(std::ceil(std::log1p(-random()) / std::log(1.0 - p)));
}

template <class T>
void NumpyRandom::shuffle_values(std::span<T> values) {
  std::array<size_t, kShuffleAhead> partners;
  size_t last = values.size();  // element last - 1 is the next to be swapped
  while (last > 1) {
    const size_t count = std::min(last - 1, kShuffleAhead);
    for (size_t k = 0; k < count; ++k) {
      partners[k] = interval(last - 1 - k);
      __builtin_prefetch(&values[partners[k]], 1);
    }
    for (size_t k = 0; k < count; ++k) std::swap(values[last - 1 - k], values[partners[k]]);
    last -= count;
  }
}

void NumpyRandom::shuffle(std::span<int32_t> values) { shuffle_values(values); }
void NumpyRandom::shuffle(std::span<uint32_t> values) { shuffle_values(values); }
void NumpyRandom::shuffle(std::span<int64_t> values) { shuffle_values(values); }

std::vector<int64_t> NumpyRandom::permutation(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), int64_t{0});
  shuffle(std::span<int64_t>(values));
  return values;
}

double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (n > 128) {
    const size_t half = n / 2 - (n / 2) % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, 8> r;
  std::copy_n(values.begin(), 8, r.begin());
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  const double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(i), values.end(), sum);
}

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  if (n >= std::numeric_limits<uint32_t>::max() / 20) {
    throw Unsupported(
        fmt::format("a cyclic order of {} samples: at most {} can be drawn like PyTorch; use "
                    "--dataloader-type single, or more data-parallel ranks with data sharding",
                    n, std::numeric_limits<uint32_t>::max() / 20 - 1));
  }
  NumpyRandom random(static_cast<uint32_t>(seed));
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), int64_t{0});
  for (int64_t i = 0; i < n - 1; ++i) {
    const int64_t j = i + static_cast<int64_t>(random.next() % static_cast<uint64_t>(n - i));
    std::swap(values[static_cast<size_t>(i)], values[static_cast<size_t>(j)]);
  }
  return values;
}

NumpyGenerator::NumpyGenerator(std::span<const uint64_t> seeds) {
  std::vector<uint32_t> entropy;
  for (const uint64_t seed : seeds) {
    entropy.push_back(static_cast<uint32_t>(seed));
    if (seed >> 32 != 0) entropy.push_back(static_cast<uint32_t>(seed >> 32));
  }

  std::array<uint32_t, 4> pool{};
  uint32_t multiplier = 0x43b0d7e5U;
  const auto hashed = [&](uint32_t value) {
    value ^= multiplier;
    multiplier *= 0x931e8875U;
    value *= multiplier;
    return value ^ (value >> 16);
  };
  const auto mixed = [](uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9ddU * x - 0x4973f715U * y;
    return value ^ (value >> 16);
  };
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = hashed(i < entropy.size() ? entropy[i] : 0);
  for (size_t i = 0; i < pool.size(); ++i) {
    for (size_t j = 0; j < pool.size(); ++j) {
      if (i != j) pool[j] = mixed(pool[j], hashed(pool[i]));
    }
  }
  for (size_t i = pool.size(); i < entropy.size(); ++i) {
    for (uint32_t& word : pool) word = mixed(word, hashed(entropy[i]));
  }

  std::array<uint64_t, 4> words{};
  multiplier = 0x8b51f9ddU;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ multiplier;
    multiplier *= 0x58f38dedU;
    value *= multiplier;
    value ^= value >> 16;
    words[i / 2] |= static_cast<uint64_t>(value) << (i % 2 == 0 ? 0 : 32);
  }
  increment_ = {(words[2] << 1) | (words[3] >> 63), (words[3] << 1) | 1};
  state_ = step({0, 0}, increment_);
  const uint64_t low = state_.low + words[1];
  state_ = {state_.high + words[0] + (low < words[1] ? 1U : 0U), low};
  state_ = step(state_, increment_);
}

// state * multiplier + increment, modulo 2^128.
NumpyGenerator::Wide NumpyGenerator::step(Wide state, Wide increment) {
  constexpr Wide kMultiplier{2549297995355413924U, 4865540595714422341U};
  // Product of the low halves from 32-bit parts.
  const uint64_t a0 = state.low & 0xffffffffU;
  const uint64_t a1 = state.low >> 32;
  const uint64_t b0 = kMultiplier.low & 0xffffffffU;
  const uint64_t b1 = kMultiplier.low >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t carry = a0 * b1 + (middle & 0xffffffffU);
  const uint64_t high = a1 * b1 + (middle >> 32) + (carry >> 32) + state.high * kMultiplier.low +
                        state.low * kMultiplier.high;
  const uint64_t low = state.low * kMultiplier.low + increment.low;
  return {high + increment.high + (low < increment.low ? 1U : 0U), low};
}

uint64_t NumpyGenerator::next64() {
  state_ = step(state_, increment_);
  return std::rotr(state_.high ^ state_.low, static_cast<int>(state_.high >> 58));
}

uint32_t NumpyGenerator::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t both = next64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(both >> 32);
  return static_cast<uint32_t>(both);
}

// Lemire 2019, "Fast random integer generation in an interval", arXiv:1805.10941.
int64_t NumpyGenerator::integers(int64_t low, int64_t high) {
  const auto range = static_cast<uint32_t>(high - 1 - low);
  if (range == 0) return low;
  const uint32_t count = range + 1;
  uint64_t product = static_cast<uint64_t>(next32()) * count;
  if (static_cast<uint32_t>(product) < count) {
    const uint32_t threshold = (std::numeric_limits<uint32_t>::max() - range) % count;
    while (static_cast<uint32_t>(product) < threshold) {
      product = static_cast<uint64_t>(next32()) * count;
    }
  }
  return low + static_cast<int64_t>(product >> 32);
}

}  // namespace megatron
