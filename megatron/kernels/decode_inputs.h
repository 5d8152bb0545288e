#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// The inputs of a step of generation whose tokens may still be on the device.
//
//   ids, positions  [rows]  out  int64
//   tokens          [rows]  in   int32: an id, or -1 - i for drawn[i]
//   lengths         [rows]  in   int32: tokens of the row, this one included; 0: no such row
//   drawn           [n]     in   int32
//
// A position is length - 1. Rows without a token, or with a negative drawn one, get id 0; positions
// are at least 0.
void decode_inputs(TensorView ids, TensorView positions, ConstView tokens, ConstView lengths,
                   ConstView drawn, Stream stream);

namespace cpu {
void decode_inputs(TensorView ids, TensorView positions, ConstView tokens, ConstView lengths,
                   ConstView drawn, Stream stream);
}  // namespace cpu

namespace cuda {
void decode_inputs(TensorView ids, TensorView positions, ConstView tokens, ConstView lengths,
                   ConstView drawn, Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
