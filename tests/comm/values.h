#pragma once

#include <cstdint>
#include <vector>

#include "megatron/core/view.h"

namespace megatron::comm {

// `count` values of T that are different on every rank and in every element; they do not add up
// exactly in any floating type, and in a sum the order matters.
template <class T>
std::vector<T> values(int rank, int64_t count, uint64_t seed = 0) {
  std::vector<T> list(static_cast<size_t>(count));
  uint64_t state = seed * 7919 + static_cast<uint64_t>(rank) * 104729 + 1;
  for (T& value : list) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int64_t number = static_cast<int64_t>(state >> 40) - (int64_t{1} << 23);
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(number);
    } else {
      value = static_cast<T>(static_cast<float>(number) / static_cast<float>(1 + (state >> 61)) *
                             0x1p-18f);
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
