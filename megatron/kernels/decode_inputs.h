#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// The inputs of a step of generation whose tokens may still be on the device.
//
//   ids, positions  [rows]      out  int64
//   pages           [p]         i/o  int32: the pages of all rows
//   tokens          [rows]      in   int32: an id, or -1 - i for drawn[i]
//   lengths         [rows]      in   int32: tokens of the row, this one included; 0: no such row
//   drawn           [n]         in   int32
//   changes         [1 + 2 c]   in   int32: the number of changes of pages, at most c, and for each
//                                    its place, which no other one has, and the page
//
// A position is length - 1. Rows without a token, or with a negative drawn one, get id 0; positions
// are at least 0.
void decode_inputs(TensorView ids, TensorView positions, TensorView pages, ConstView tokens,
                   ConstView lengths, ConstView drawn, ConstView changes, Stream stream);

namespace cpu {
decltype(kernels::decode_inputs) decode_inputs;
}  // namespace cpu

namespace cuda {
decltype(kernels::decode_inputs) decode_inputs;
}  // namespace cuda

}  // namespace megatron::kernels
