#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/random.h"

// Dropout whose mask is a pure function of a DropoutKey (device/random.h): nothing is stored, the
// backward pass computes the mask again. Views are [s, b, h]: position in the sample, sample of
// the microbatch, column. Each may be fp32, fp16 or bf16. Computes in fp32, rounds once on store.
namespace megatron::kernels {

// y = residual + dropout(x + bias), where dropout keeps an element with probability
// 1 - key.probability, scaled by its inverse, and makes it 0 otherwise.
//
//   y         [s, b, h]  out  may alias x or residual of its dtype
//   x         [s, b, h]  in
//   bias      [h]        in   may be null
//   residual  [s, b, h]  in   may be null
//
// An inactive key keeps everything.
void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream);

// dx = dropout(dy) with the mask of the forward pass. The gradient of residual is dy itself.
//   dx [s, b, h] out, may alias dy of its dtype    dy [s, b, h] in
void dropout_backward(TensorView dx, ConstView dy, DropoutKey key, Stream stream);

namespace cpu {
void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream);
void dropout_backward(TensorView dx, ConstView dy, DropoutKey key, Stream stream);
}  // namespace cpu

namespace cuda {
void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream);
void dropout_backward(TensorView dx, ConstView dy, DropoutKey key, Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
