#include "megatron/kernels/cpu/few_rows.h"

#include <algorithm>
#include <array>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/few_rows_products.h"
#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/simd.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/workspace.h"

// A lane of a vector is a column of c, so that a sum runs over k as in the blocked product. One
// core reads memory fastest as several streams in different pages: the columns of a thread are a
// run for each lane of each vector.
namespace megatron::kernels::cpu {
namespace {

using simd::kLanes;
using simd::Vec;

constexpr int64_t kMinFewRowsFlops = 1'000'000;

// totals[group * m + i] = or += start[group] + the products of row i of a with the rows of
// b[group], in the order of gemm().
//   a  groups of rows; see GroupedRows
template <class T, int64_t kGroups>
void multiply_lanes(Vec* totals, bool accumulate, const Vec* start, const float* a,
                    const simd::Rows<T>* b, int64_t m, int64_t k) {
  for (int64_t first = 0; first == 0 || first < k; first += kGemmDepth) {
    const int64_t last = std::min(k, first + kGemmDepth);
    for (int64_t row = 0; row < m; row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, m - row);
      Vec sums[kGroups * kRowsAtOnce];
      for (int64_t g = 0; g < kGroups; ++g) {
        std::fill_n(sums + g * count, count, first == 0 ? start[g] : Vec{});
      }
      add_products_of<T>(count, kGroups)(sums, a + row * k, b, first, last);
      for (int64_t g = 0; g < kGroups; ++g) {
        for (int64_t i = 0; i < count; ++i) {
          Vec& total = totals[g * m + row + i];
          const Vec sum = sums[g * count + i];
          total = first == 0 && !accumulate ? sum : total + sum;
        }
      }
    }
  }
}

template <class T>
struct Operands {
  const float* a;  // see GroupedRows
  const T* b;
  const float* bias;    // or null
  const float* scales;  // of columns; null: 1
  int64_t m, n, k;
  float beta;
};

// The columns of c that the lanes compute: the first `count` ones, each another.
struct Columns {
  std::array<int64_t, static_cast<size_t>(kLanes)> at;
  size_t count;
};

template <class C>
Vec load_scaled(const C* row, const Columns& columns, float beta) {
  Vec values{};
  if (beta == 0) return values;
  for (size_t j = 0; j < columns.count; ++j) {
    values[j] = beta * static_cast<float>(row[columns.at[j]]);
  }
  return values;
}

template <class C>
void store_rounded(C* row, const Columns& columns, Vec values) {
  C rounded[kLanes];
  simd::store(rounded, values);
  for (size_t j = 0; j < columns.count; ++j) row[columns.at[j]] = rounded[j];
}

// Columns [begin, end) of c.
template <class T, class C, int64_t kGroups>
void multiply_columns(C* c, const Operands<T>& x, int64_t begin, int64_t end) {
  // Lanes an odd number of rows apart have different places in the caches, unless rows are long.
  constexpr int64_t kRuns = kGroups * kLanes;
  const int64_t run = (end - begin + kRuns - 1) / kRuns | 1;
  for (int64_t first = begin; first < std::min(end, begin + run); ++first) {
    Columns columns[kGroups];
    simd::Rows<T> rows[kGroups];
    Vec bias[kGroups]{};
    Vec scales[kGroups]{};
    Vec totals[kGroups * kMaxFewRows];
    for (int64_t g = 0; g < kGroups; ++g) {
      const int64_t start = first + g * kLanes * run;
      columns[g].count = static_cast<size_t>(
          start < end ? std::min(kLanes, (end - 1 - start) / run + 1) : int64_t{0});
      for (size_t j = 0; j < rows[g].size(); ++j) {
        // Lanes beyond the end compute the last column once more, for nothing.
        const int64_t at = j < columns[g].count ? start + static_cast<int64_t>(j) * run : end - 1;
        columns[g].at[j] = at;
        rows[g][j] = x.b + at * x.k;
        if (x.bias != nullptr) bias[g][j] = x.bias[at];
        if (x.scales != nullptr) scales[g][j] = x.scales[at];
      }
      for (int64_t i = 0; i < x.m; ++i) {
        totals[g * x.m + i] = load_scaled(c + i * x.n, columns[g], x.beta);
      }
    }
    const bool is_scaled = x.scales != nullptr;
    const Vec zero[kGroups]{};
    multiply_lanes<T, kGroups>(totals, x.beta != 0, is_scaled ? zero : bias, x.a, rows, x.m, x.k);
    for (int64_t g = 0; g < kGroups; ++g) {
      for (int64_t i = 0; i < x.m; ++i) {
        const Vec total = totals[g * x.m + i];
        store_rounded(c + i * x.n, columns[g],
                      is_scaled ? simd::fma(total, scales[g], bias[g]) : total);
      }
    }
  }
}

// fp32 elements of a floating-point view, copied if it has another dtype. A null view stays null.
class WideRow {
 public:
  WideRow(ConstView x, Stream stream)
      : scratch_(is_copied(x) ? x.numel() * 4 : 0, stream),
        data_(is_copied(x) ? scratch_.as<float>() : static_cast<const float*>(x.data)) {
    if (is_copied(x)) to_floats(scratch_.as<float>(), x.data, x.dtype, x.numel());
  }
  const float* data() const { return data_; }

 private:
  static bool is_copied(const ConstView& x) {
    return x.data != nullptr && x.dtype != DType::kFloat32;
  }
  Scratch scratch_;
  const float* data_;
};

// Rows [m, k] in fp32, in groups of kRowsAtOnce: that of row `first` begins at first * k, and holds
// element l of its row i, of n rows, at l * n + i.
class GroupedRows {
 public:
  GroupedRows(ConstView a, Stream stream)
      : single_(a.size(0) == 1 ? a : ConstView{}, stream),
        scratch_(a.size(0) == 1 ? 0 : a.numel() * 4, stream),
        data_(a.size(0) == 1 ? single_.data() : scratch_.as<float>()) {
    const int64_t m = a.size(0), k = a.size(1);
    if (m == 1) return;
    dispatch_floating(a.dtype, "matmul", [&]<class T>() {
      for (int64_t first = 0; first < m; first += kRowsAtOnce) {
        const int64_t n = std::min(kRowsAtOnce, m - first);
        float* const group = scratch_.as<float>() + first * k;
        for (int64_t i = 0; i < n; ++i) {
          const T* const row = a.as<T>() + (first + i) * k;
          for (int64_t l = 0; l < k; ++l) group[l * n + i] = static_cast<float>(row[l]);
        }
      }
    });
  }
  const float* data() const { return data_; }

 private:
  WideRow single_;
  Scratch scratch_;
  const float* data_;
};

template <class T, class C>
void multiply(C* c, const Operands<T>& x) {
  const int64_t grain = kMinFewRowsFlops / (2 * x.m * x.k + 1) + 1;
  parallel_for(x.n, grain, [&](int64_t begin, int64_t end) {
    if (x.m == 1) {
      multiply_columns<T, C, kGroupsOfOneRow<T>>(c, x, begin, end);
    } else {
      multiply_columns<T, C, 1>(c, x, begin, end);
    }
  });
}

}  // namespace

void few_rows_matmul(TensorView c, ConstView a, ConstView b, ConstView bias, float beta,
                     Stream stream) {
  const GroupedRows left(a, stream);
  const WideRow added(bias, stream);
  dispatch_floating(b.dtype, "matmul", [&]<class T>() {
    const Operands<T> operands{left.data(), b.as<T>(), added.data(), nullptr,
                               c.size(0),   c.size(1), a.size(1),    beta};
    if (c.dtype == DType::kFloat32) {  // NOLINT(bugprone-branch-clone): T may be a 16-bit type
      multiply(c.as<float>(), operands);
    } else {
      multiply(c.as<T>(), operands);
    }
  });
}

void few_rows_int8_matmul(TensorView c, ConstView a, ConstView numbers, ConstView scales,
                          ConstView bias, Stream stream) {
  const GroupedRows left(a, stream);
  const WideRow added(bias, stream);
  const Operands<int8_t> operands{left.data(),  numbers.as<int8_t>(),
                                  added.data(), scales.as<float>(),
                                  c.size(0),    c.size(1),
                                  a.size(1),    0};
  dispatch_floating(c.dtype, "int8_matmul", [&]<class C>() { multiply(c.as<C>(), operands); });
}

}  // namespace megatron::kernels::cpu
