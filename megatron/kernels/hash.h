#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// hash += the terms (hash_term.h) of a part of a tensor.
//
//   hash  [1]           io  int64: a number modulo 2^64
//   x     [rows, cols]  in  any dtype; element (r, c) has index first + r * stride + c in the whole
//                           tensor
//
// The result does not depend on the order of work, nor on the device.
void add_hash(TensorView hash, ConstView x, int64_t first, int64_t stride, Stream stream);

namespace cpu {
decltype(kernels::add_hash) add_hash;
}
namespace cuda {
decltype(kernels::add_hash) add_hash;
}

}  // namespace megatron::kernels
