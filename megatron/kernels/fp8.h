#pragma once

#include <cstdint>
#include <optional>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/activation.h"

// Quantisation to FP8 (Micikevicius et al. 2022, arXiv:2209.05433): an element v of a tensor with
// scale s is stored as round(v * s).
namespace megatron::kernels {

// The matrix v that is quantised: x, or act(x), or dy * act'(x), computed in fp32 on the way and
// not rounded before it is scaled.
//
//   v   [rows, cols]
//   x   [rows, cols]; [rows, 2 cols] for act(x) with a gated activation
//   dy  [rows, cols]; [rows, cols / 2] with a gated activation; null: no derivative
//
// x and dy are fp32, fp16 or bf16, both of one dtype.
struct Fp8Source {
  ConstView x;
  std::optional<Activation> activation = {};
  ConstView dy = {};

  bool is_derivative() const { return dy.data != nullptr; }
  int64_t rows() const { return x.size(0); }
  int64_t cols() const {
    const bool halves = activation && is_gated(*activation) && !is_derivative();
    return halves ? x.size(1) / 2 : x.size(1);
  }
  // Throws ShapeError or DtypeError "<who>: dy ..." unless x and dy fit.
  void expect_valid(const char* who) const;
};

// Rows of a matrix that are summed together in Fp8Target::sums.
inline constexpr int64_t kFp8SumRows = 128;

// The value of the activation, recomputed by the backward pass beside the derivative because it
// reads x anyway.
//
//   columns  [cols of act(x), rows]  out  E4M3: round(act(x) * scale), transposed; null: none
//   scale    [1]                     in   fp32
struct Fp8Value {
  TensorView columns = {};
  ConstView scale = {};
};

// The outputs computed from v. A null view is not computed.
//
//   rows     [rows, cols]  out     FP8: round(v * scale)
//   columns  [cols, rows]  out     FP8: its transpose, in the dtype of rows
//   inverse  [1]           out     fp32: 1 / scale, which products read (fp8_matmul.h)
//   amax     [1]           in out  fp32: the larger one of its value and of all |v|; NaN wins
//   sums     [ceil(rows / kFp8SumRows), cols]  out  fp32: sums of v over kFp8SumRows rows each
struct Fp8Target {
  TensorView rows = {};
  TensorView columns = {};
  TensorView inverse = {};
  TensorView amax = {};
  TensorView sums = {};
  Fp8Value value = {};  // only if v is a derivative
};

// One pass over v.   scale [1] fp32 in; may be null if only amax or sums are made
//
// The order of every sum depends only on the shape. On a GPU rows and cols are multiples of 16 and
// rows of x and dy start at multiples of 16 bytes; throws ShapeError otherwise.
void fp8_quantize(const Fp8Target& target, const Fp8Source& source, ConstView scale, Stream stream);

namespace cpu {
decltype(kernels::fp8_quantize) fp8_quantize;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_quantize) fp8_quantize;
}  // namespace cuda

}  // namespace megatron::kernels
