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

// See AddProducts; the products of a sum are added one after the other in each chain.
template <int64_t kGroups, int64_t kRows, class T>
void add_products(Vec* sums, const float* a, const simd::Rows<T>* b, int64_t begin, int64_t end) {
  constexpr int64_t kStep = 16 / sizeof(T);  // elements of a piece of a row
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  Vec local[kChains<T>][kGroups * kRows]{};
  std::copy_n(sums, kGroups * kRows, local[0]);
  const auto add = [&](Vec column, int64_t group, int64_t l, size_t chain) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      Vec& sum = local[chain][group * kRows + i];
      sum = simd::fma(simd::broadcast(a[l * kRows + i]), column, sum);
    }
  };
  // A group is a line behind the one before it: the rows of two that are a multiple of 4 KiB apart
  // would need more lines of a set of the cache than it has.
  const int64_t lines_end = end - (end - begin) % kLine;
  for (int64_t line = begin; line < lines_end + (kGroups - 1) * kLine; line += kLine) {
#pragma GCC unroll 4
    for (int64_t at = 0; at < kLine; at += kStep) {
#pragma GCC unroll 2
      for (int64_t group = 0; group < kGroups; ++group) {
        const int64_t l = line - group * kLine + at;
        if (kGroups > 1 && (l < begin || l >= lines_end)) continue;
        const simd::Rows<T>& rows = b[group];
#pragma GCC unroll 4
        for (int64_t j = 0; j < kLanes / 4; ++j) {
          const auto row = static_cast<size_t>(at / kStep * kLanes / 4 + j);
          __builtin_prefetch(reinterpret_cast<const char*>(rows[row] + l - at) + kBytesAhead);
        }
        simd::for_each_column(rows, l, [&](int64_t j, Vec column) {
          add(column, group, l + j, static_cast<size_t>(j) % kChains<T>);
        });
      }
    }
  }
  for (int64_t group = 0; group < kGroups; ++group) {
    for (int64_t l = lines_end; l < end; ++l) {
      Vec column;
      for (size_t j = 0; j < b[group].size(); ++j) column[j] = static_cast<float>(b[group][j][l]);
      add(column, group, l, 0);
    }
  }
  for (int64_t i = 0; i < kGroups * kRows; ++i) {
    sums[i] = kChains<T> == 1 ? local[0][i] : local[0][i] + local[kChains<T> - 1][i];
  }
}

}  // namespace few_rows_detail

template <class T>
AddProducts<T> add_products_of(int64_t rows, int64_t groups) {
  if (groups > 1) return &few_rows_detail::add_products<kGroupsOfOneRow<T>, 1, T>;
  static constexpr auto kProducts = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<AddProducts<T>, sizeof...(kIndex)>{
        &few_rows_detail::add_products<1, static_cast<int64_t>(kIndex) + 1, T>...};
  }
  (std::make_index_sequence<static_cast<size_t>(kRowsAtOnce)>());
  return kProducts[static_cast<size_t>(rows - 1)];
}

}  // namespace megatron::kernels::cpu
