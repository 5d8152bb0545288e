#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels {

// dst = src, head by head: copies the keys and values of new tokens into a cache.
//   dst [s, b, heads, d] out    src [s, b, heads, d] in, dtype of dst; they must not overlap
void copy_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream);

namespace cpu {
decltype(kernels::copy_heads) copy_heads;
}  // namespace cpu

namespace cuda {
decltype(kernels::copy_heads) copy_heads;
}  // namespace cuda

}  // namespace megatron::kernels
