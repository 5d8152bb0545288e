#include "megatron/kernels/grouped_matmul.h"

#include <algorithm>
#include <type_traits>

namespace megatron::kernels::cpu {
namespace {

// Rows [begin, end) of a matrix, and matrix e of a stack.
template <class View>
View grouped_rows(const View& x, int64_t begin, int64_t end) {
  View rows = x;
  const int64_t bytes = begin * x.size(1) * size_of(x.dtype);
  if constexpr (std::is_same_v<View, TensorView>) {
    rows.data = static_cast<char*>(x.data) + bytes;
  } else {
    rows.data = static_cast<const char*>(x.data) + bytes;
  }
  rows.shape = {end - begin, x.size(1)};
  return rows;
}
template <class View>
View group_matrix(const View& w, int64_t e) {
  View stack = w;
  stack.shape = {w.size(0) * w.size(1), w.size(2)};
  return grouped_rows(stack, e * w.size(1), (e + 1) * w.size(1));
}

void clear_grouped_rows(const TensorView& x) {
  std::fill_n(static_cast<char*>(x.data), x.bytes(), char{0});
}

}  // namespace

void grouped_matmul(TensorView y, ConstView x, ConstView w, Transpose transpose_w,
                    ConstView offsets, Stream stream) {
  const auto* const at = offsets.as<int32_t>();
  const int64_t groups = w.size(0);
  for (int64_t e = 0; e < groups; ++e) {
    if (at[e] == at[e + 1]) continue;
    kernels::cpu::matmul(grouped_rows(y, at[e], at[e + 1]), grouped_rows(x, at[e], at[e + 1]),
                         Transpose::kNo, group_matrix(w, e), transpose_w, ConstView{}, 0.0f,
                         stream);
  }
  clear_grouped_rows(grouped_rows(y, at[groups], y.size(0)));
}

void grouped_matmul_gradient(TensorView dw, ConstView dy, ConstView x, ConstView offsets,
                             float beta, Stream stream) {
  const auto* const at = offsets.as<int32_t>();
  for (int64_t e = 0; e < dw.size(0); ++e) {
    if (at[e] == at[e + 1] && beta == 1.0f) continue;
    kernels::cpu::matmul(group_matrix(dw, e), grouped_rows(dy, at[e], at[e + 1]), Transpose::kYes,
                         grouped_rows(x, at[e], at[e + 1]), Transpose::kNo, ConstView{}, beta,
                         stream);
  }
}

}  // namespace megatron::kernels::cpu
