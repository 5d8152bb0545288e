#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/random.h"

// Dropout with a mask that is a pure function of a DropoutKey (device/random.h): nothing is stored,
// and the backward pass computes the mask again. Views are [s, b, h]: position in the sample,
// sample of the microbatch, column. Each may be fp32, fp16 or bf16. Computes in fp32, rounds once
// on store.
namespace megatron::kernels {

// y = residual + dropout(x + bias). Dropout keeps an element with probability 1 - key.probability,
// scaled by the inverse of that, and otherwise sets it to 0.
//
//   y         [s, b, h]  out  may alias x or residual if of its dtype
//   x         [s, b, h]  in
//   bias      [h]        in   may be null
//   residual  [s, b, h]  in   may be null
//
// An inactive key keeps everything.
void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream);

// y = dropout(x) for columns [first_column, first_column + h) of a tensor whose columns are spread
// over ranks. The same call makes dx of dy. The gradient of a residual is dy itself.
//
//   y  [s, b, h]  out  may alias x if of its dtype
//   x  [s, b, h]  in
//
// REQUIRES: first_column % 8 == 0.
void dropout(TensorView y, ConstView x, DropoutKey key, int64_t first_column, Stream stream);

namespace cpu {
decltype(kernels::bias_dropout_add_forward) bias_dropout_add_forward;
decltype(kernels::dropout) dropout;
}  // namespace cpu

namespace cuda {
decltype(kernels::bias_dropout_add_forward) bias_dropout_add_forward;
decltype(kernels::dropout) dropout;
}  // namespace cuda

}  // namespace megatron::kernels
