#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "megatron/core/view.h"

namespace megatron::comm {

// `count` values of T that differ on every rank and in every element. Exponents of floating-point
// values are so far apart that sums of three or more show their order in fp32 and fp64, and a
// second rounding in 16 bits.
template <class T>
std::vector<T> values(int rank, int64_t count, uint64_t seed = 0) {
  std::vector<T> list(static_cast<size_t>(count));
  uint64_t state = seed * 7919 + static_cast<uint64_t>(rank) * 104729 + 1;
  for (T& value : list) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int64_t number = static_cast<int64_t>(state) >> 11;  // 53 bits
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(number >> 29);
    } else {
      const int exponent =
          static_cast<int>(state >> 7 & 15) - 8;  // from bits that hardly affect `number`
      const double real = std::ldexp(static_cast<double>(number), exponent - 52);
      if constexpr (std::is_same_v<T, double>) {
        value = real;
      } else {
        value = static_cast<T>(static_cast<float>(real));
      }
    }
  }
  return list;
}

template <class T>
TensorView view_of(std::vector<T>& list) {
  return {list.data(), {static_cast<int64_t>(list.size())}, dtype_of<T>()};
}
template <class T>
ConstView view_of(const std::vector<T>& list) {
  return {list.data(), {static_cast<int64_t>(list.size())}, dtype_of<T>()};
}

// The part of rank `rank` of `size`.
template <class T>
TensorView part_of(std::vector<T>& list, int rank, int size) {
  const int64_t count = static_cast<int64_t>(list.size()) / size;
  return {list.data() + count * rank, {count}, dtype_of<T>()};
}

}  // namespace megatron::comm
