#pragma once

#include <span>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/fp8_moment.h"
#include "megatron/kernels/moment_code.h"
#include "megatron/kernels/optimizer_step.h"
#include "megatron/kernels/random_rounding.h"

// Optimizer updates over flat buffers. One pass handles every element of every parameter: a step
// reads the gradients once and reads and writes the state once.
namespace megatron::kernels {

// Divides a flat buffer into ranges by their place in parameters, for stochastic rounding.
//   ends    [k] int64, as below; the last is at least the element count of the buffers
//   places  [k, kPlaceNumbers] int64: a RoundingPlace each (random_rounding.h)
//   step    number of the update, from 1: each draws other bits
struct RoundingRanges {
  ConstView ends = {};
  ConstView places = {};
  uint32_t step = 0;
};

// Divides a flat buffer into ranges, each with a group. Range i is [ends[i-1], ends[i]); the first
// begins at 0. Both tables live on the buffers' device and do not change between steps.
//   ends    [k] int64, rising; the last is the element count of the buffers
//   groups  [k] int32, >= 0
//   keys    [k] int32, for moments in fp8 alone: the key of the range's first block of kMomentBlock
//           elements; those of the next ones count on
struct GroupRanges {
  ConstView ends;
  ConstView groups;
  ConstView keys = {};
  RoundingRanges rounding = {};  // for main parameters in bf16 alone
};

// One of Adam's moments.
//   elements   [n]           fp32 | bf16: the moment; fp16: codes (moment_code.h); fp8: codes
//   exponents  [ceil(n/64)]  of fp8, uint8 (fp8_moment.h); else null
struct Moment {
  // NOLINTNEXTLINE(google-explicit-constructor): most moments are their elements
  Moment(TensorView of, TensorView exponents_of_blocks = {})
      : elements(of), exponents(exponents_of_blocks) {}

  TensorView elements;
  TensorView exponents;

  bool is_fp8() const { return elements.dtype == DType::kFloat8E4M3; }
};

// Bytes of a moment of `elements` elements, including exponents.
inline int64_t moment_bytes(int64_t elements, DType dtype) {
  const int64_t of_elements = elements * size_of(dtype);
  if (dtype != DType::kFloat8E4M3) return of_elements;
  return of_elements + (elements + kMomentBlock - 1) / kMomentBlock;
}

// The values of one parameter group for one step.
struct AdamNumbers {
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double bias_correction1 = 1.0;  // 1 - beta1^step
  double bias_correction2 = 1.0;  // 1 - beta2^step
  double fp16_scale = 1.0;        // of moments in fp16, the same in all groups (moment_code.h)
  uint32_t rounding_seed = 0;     // of moments in fp8, the same in all groups, another each step
};

struct SgdNumbers {
  double lr = 0.0;
  double momentum = 0.0;
  double weight_decay = 0.0;
};

struct LionNumbers {
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
  double fp16_scale = 1.0;  // as for Adam
};

// A range's group is an index into `numbers`.
//
// Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2):
//
//   g = grad_scale * grad;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//   w -= lr (m / bias_correction1 / (sqrt(v / bias_correction2) + eps) + weight_decay w)
//
//   model       [n]  out  fp32 | fp16 | bf16: w rounded once; null if main is the model's own
//   main        [n]  io   fp32: w; int16: what w has beyond a bf16 `model` (main_param.h), which
//                         then is input, too; or bf16: w, rounded at random (random_rounding.h) as
//                         ranges.rounding says; `model`, bf16 or null, gets the same bits
//   exp_avg     [n]  io   m, rounded once; in fp8 at random
//   exp_avg_sq  [n]  io   v, the same
//   grad        [n]  in   fp32 | fp16 | bf16
//   state       [kStepStateBytes]  in  a StepState: grad_scale, and is_skipped, which leaves all
//                                      buffers unchanged
//
// Nothing overlaps. The result does not depend on the number of threads.
// REQUIRES: with moments in fp8, ranges have keys and end at multiples of kMomentBlock, or at n.
void adam(TensorView model, TensorView main, const Moment& exp_avg, const Moment& exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream stream);

// Stochastic gradient descent with momentum and L2 regularization:
//
//   g = grad_scale * grad + weight_decay w;   buf = momentum buf + g;   w -= lr buf
//
//   model            [n]  out  as for adam
//   main             [n]  io   as for adam
//   momentum_buffer  [n]  io   fp32; zeros before the first step
//   grad             [n]  in   fp32 | fp16 | bf16
//   state            as for adam
void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, ConstView state,
                  Stream stream);

// Lion (Chen et al. 2023, arXiv:2302.06675, alg. 2):
//
//   g = grad_scale * grad;   c = beta1 m + (1 - beta1) g
//   w -= lr (sign(c) + weight_decay w);   m = beta2 m + (1 - beta2) g
//
//   model, main, grad, state  as for adam; a NaN in c makes w NaN
//   exp_avg  [n]  io  m: fp32 | bf16 | fp16, rounded once
void lion(TensorView model, TensorView main, const Moment& exp_avg, ConstView grad,
          const GroupRanges& ranges, std::span<const LionNumbers> numbers, ConstView state,
          Stream stream);

// The fp32 main parameters of bf16 ones, and back (main_param.h).
//   main       [n]  fp32     model  [n]  bf16     remainder  [n]  int16
// join_main_params writes main; split_main_params writes the remainder that comes nearest to main.
void join_main_params(TensorView main, ConstView model, ConstView remainder, Stream stream);
void split_main_params(TensorView remainder, ConstView main, ConstView model, Stream stream);

// The moments that codes stand for, and back, rounding to nearest. In fp8 only is_root counts.
//   moment  [n]  fp32     codes  [n]  fp16 | fp8
// decode_moment writes `moment`; encode_moment writes `codes`.
void decode_moment(TensorView moment, const Moment& codes, const MomentCode& code, Stream stream);
void encode_moment(const Moment& codes, ConstView moment, const MomentCode& code, Stream stream);

// For every group: the sum of squares and the number of zeros among its elements of x.
//   y        [groups, 2]  out  fp64; the sum is finite if and only if every element is
//   x        [n]          in   fp32 | fp16 | bf16
//   scratch  measure_scratch_shape(n, groups)  fp64; left undefined
// fp64 partial sums, in an order that depends only on n and the ranges.
void squares_and_zeros(TensorView y, ConstView x, const GroupRanges& ranges, TensorView scratch,
                       Stream stream);
Shape measure_scratch_shape(int64_t n, int64_t num_groups);

// After a skipped step: lowers first_not_finite of the state to the lowest group with an element of
// x that is infinite or NaN. After any other step it does not read x.
//   state  [kStepStateBytes]  io  a StepState
//   x      [n]                in  fp32 | fp16 | bf16
void find_not_finite(TensorView state, ConstView x, const GroupRanges& ranges, Stream stream);

// Elements of one partial sum of squares: the result does not depend on the number of threads or
// multiprocessors.
inline constexpr int64_t kMeasureChunk = 65536;

namespace cpu {
decltype(kernels::adam) adam;
decltype(kernels::sgd_momentum) sgd_momentum;
decltype(kernels::lion) lion;
decltype(kernels::join_main_params) join_main_params;
decltype(kernels::split_main_params) split_main_params;
decltype(kernels::decode_moment) decode_moment;
decltype(kernels::encode_moment) encode_moment;
decltype(kernels::squares_and_zeros) squares_and_zeros;
decltype(kernels::find_not_finite) find_not_finite;
}  // namespace cpu

namespace cuda {
decltype(kernels::adam) adam;
decltype(kernels::sgd_momentum) sgd_momentum;
decltype(kernels::lion) lion;
decltype(kernels::join_main_params) join_main_params;
decltype(kernels::split_main_params) split_main_params;
decltype(kernels::decode_moment) decode_moment;
decltype(kernels::encode_moment) encode_moment;
decltype(kernels::squares_and_zeros) squares_and_zeros;
decltype(kernels::find_not_finite) find_not_finite;
}  // namespace cuda

}  // namespace megatron::kernels
