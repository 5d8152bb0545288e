#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megatron/formats/sharded.h"
#include "megatron/interchange/hf/quantized.h"

// Weights [rows, columns] of numbers with scales: element (r, c) is s (n(r, c) - z), where s and z
// are the scale and the zero point of its block of rows and of its group of columns.
namespace megatron {

struct WeightScales {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t groups = 1;  // of columns
  int64_t rows_per_scale = 1;
  std::vector<float> scales = {};   // [ceil(rows / rows_per_scale), groups]
  std::vector<float> zeros = {};    // the same, or empty: 0
  std::vector<int64_t> group = {};  // of each column

  // Columns in groups of `size` consecutive ones; the last may be shorter.
  void group_by(int64_t size) {
    for (int64_t c = 0; c < columns; ++c) group.push_back(c / size);
  }
};

// The rows of a weight; number(r, c) is n as a float.
template <class Number>
RowReader rows_of(WeightScales w, Number number) {
  return [w = std::move(w), number = std::move(number)](int64_t begin, int64_t end, float* y) {
    std::vector<int64_t> first;  // scale of each row
    for (int64_t r = begin; r < end; ++r) first.push_back(r / w.rows_per_scale * w.groups);
    // Columns outside: packed numbers of neighbouring rows lie together in some formats.
    for (int64_t c = 0; c < w.columns; ++c) {
      const int64_t group = w.group[static_cast<size_t>(c)];
      for (int64_t r = begin; r < end; ++r) {
        const auto i = static_cast<size_t>(first[static_cast<size_t>(r - begin)] + group);
        const float zero = w.zeros.empty() ? 0.0f : w.zeros[i];
        y[(r - begin) * w.columns + c] = w.scales[i] * (number(r, c) - zero);
      }
    }
  };
}

// Number `i` of a row of numbers of `bits` bits without gaps between them, the first in the lowest
// bits; the row's words are `stride` apart.
inline float packed_number(const int32_t* words, int64_t stride, int64_t i, int64_t bits) {
  const int64_t bit = i * bits;
  const int64_t shift = bit % 32;
  const int32_t* word = words + bit / 32 * stride;
  uint64_t both = static_cast<uint32_t>(word[0]);
  if (shift + bits > 32) both |= static_cast<uint64_t>(static_cast<uint32_t>(word[stride])) << 32;
  return static_cast<float>((both >> shift) & ((uint64_t{1} << bits) - 1));
}

// Elements of a floating-point tensor, also of FP8, or of int8, uint8, int32 or int64.
std::vector<float> floats_of(const Tensor& x);
// Elements of int32 or int64.
std::vector<int64_t> integers_of(const Tensor& x);
// [rows, columns] -> [columns, rows]
std::vector<float> transposed(const std::vector<float>& x, int64_t columns);

// The weights of a folder whose tensors end with `suffix`, as "<layer>" + suffix.
std::vector<std::string> layers_with(const ShardedWeights& folder, const std::string& suffix);

// The shape of a tensor. Throws FormatError if the folder lacks it, or it has another number of
// axes, no elements or, if given, another type.
Shape part_shape(const ShardedWeights& folder, const std::string& name, int axes);
Shape part_shape(const ShardedWeights& folder, const std::string& name, int axes, DType dtype);

[[noreturn]] void refuse_part(const ShardedWeights& folder, const std::string& name,
                              const std::string& rule);

}  // namespace megatron
