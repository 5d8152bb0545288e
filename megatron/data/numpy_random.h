#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// numpy's legacy RandomState(seed), bit for bit, which Megatron draws sample orders and masks from:
// MT19937 (Matsumoto and Nishimura 1998) with the single-integer seeding.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);

  // One 32-bit output of the generator.
  uint32_t next();
  // Uniform in [0, max], by rejection under a bit mask. Draws nothing if max is 0.
  uint64_t interval(uint64_t max);
  // Uniform in [0, 1), 53 bits.
  double random();
  // Uniform in [low, high). REQUIRES: low < high.
  int64_t randint(int64_t low, int64_t high);
  // An index drawn with these probabilities, which need not add up to 1 exactly.
  // REQUIRES: probabilities is not empty.
  int64_t choice(std::span<const double> probabilities);
  // Number of trials up to the first success. REQUIRES: 0 < p < 1/3.
  int64_t geometric(double p);
  // Fisher-Yates from the last element down; the draws depend only on the size.
  void shuffle(std::span<int32_t> values);
  void shuffle(std::span<uint32_t> values);
  void shuffle(std::span<int64_t> values);
  // 0 .. n-1 in random order.
  std::vector<int64_t> permutation(int64_t n);

 private:
  template <class T>
  void shuffle_values(std::span<T> values);
  void refill();

  static constexpr int kStateSize = 624;
  std::array<uint32_t, kStateSize> state_;
  std::array<uint32_t, kStateSize> outputs_;
  int position_ = kStateSize;
};

// numpy's float64 sum: pairwise above 8 elements, with numpy's rounding.
double numpy_sum(std::span<const double> values);

// torch.randperm(n) on the CPU with a generator seeded with `seed`. Throws Unsupported for n >=
// 2^32 / 20, where torch uses another method.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

// numpy's default_rng(seeds): SeedSequence (O'Neill 2015) feeding PCG64 XSL-RR (O'Neill 2014).
class NumpyGenerator {
 public:
  explicit NumpyGenerator(std::span<const uint64_t> seeds);

  // Uniform in [low, high), like Generator.integers. REQUIRES: low < high, high - low < 2^32.
  int64_t integers(int64_t low, int64_t high);

 private:
  uint64_t next64();
  uint32_t next32();

  // The 128-bit state and increment, as high and low halves.
  struct Wide {
    uint64_t high;
    uint64_t low;
  };
  static Wide step(Wide state, Wide increment);

  Wide state_{};
  Wide increment_{};
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace megatron
