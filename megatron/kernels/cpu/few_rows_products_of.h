#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "megatron/kernels/cpu/few_rows_products.h"

// The definition of add_products_of(), for the sources that instantiate it.
namespace megatron::kernels::cpu {
namespace few_rows_detail {

using simd::kLanes;
using simd::Vec;

constexpr int64_t kLineBytes = 64;
// How far ahead of its use a line of b is requested: where its row ends, the next row of the run
// begins.
constexpr int64_t kBytesAhead = 1024;

// Sums of a column and row that run beside each other. int8 is so small that one, addition after
// addition, would take longer than reading it.
template <class T>
constexpr size_t kChains = sizeof(T) == 1 ? 2 : 1;

// sums[i] += a(i, l) * b(lane, l) for l in [begin, end), one after the other in each chain.
template <int64_t kRows, class T>
void add_products(Vec* sums, const float* a, const simd::Rows<T>& b, int64_t begin, int64_t end) {
  constexpr int64_t kStep = 16 / sizeof(T);  // elements of a piece of a row
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  Vec local[kChains<T>][kRows]{};
  std::copy_n(sums, kRows, local[0]);
  const auto add = [&](Vec column, int64_t l, size_t chain) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      Vec& sum = local[chain][i];
      sum = simd::fma(simd::broadcast(a[l * kRows + i]), column, sum);
    }
  };
  int64_t l = begin;
  for (; l + kLine <= end; l += kLine) {
#pragma GCC unroll 4
    for (int64_t at = 0; at < kLine; at += kStep) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kLanes / 4; ++j) {
        const auto row = static_cast<size_t>(at / kStep * kLanes / 4 + j);
        const auto* line = reinterpret_cast<const char*>(b[row] + l);
        __builtin_prefetch(line + kBytesAhead);
      }
      simd::for_each_column(b, l + at, [&](int64_t j, Vec column) {
        add(column, l + at + j, static_cast<size_t>(j) % kChains<T>);
      });
    }
  }
  for (; l < end; ++l) {
    Vec column;
    for (size_t j = 0; j < b.size(); ++j) column[j] = static_cast<float>(b[j][l]);
    add(column, l, 0);
  }
  for (int64_t i = 0; i < kRows; ++i) {
    sums[i] = kChains<T> == 1 ? local[0][i] : local[0][i] + local[kChains<T> - 1][i];
  }
}

}  // namespace few_rows_detail

template <class T>
AddProducts<T> add_products_of(int64_t rows) {
  static constexpr auto kProducts = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<AddProducts<T>, sizeof...(kIndex)>{
        &few_rows_detail::add_products<static_cast<int64_t>(kIndex) + 1, T>...};
  }
  (std::make_index_sequence<static_cast<size_t>(kRowsAtOnce)>());
  return kProducts[static_cast<size_t>(rows - 1)];
}

}  // namespace megatron::kernels::cpu
