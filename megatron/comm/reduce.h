#pragma once

#include <cstdint>
#include <span>

#include "megatron/comm/call.h"

namespace megatron::comm {

// Writes in[0][i] + in[1][i] + .. (or their maximum), taken in that order, to element i of every
// output. 16-bit elements are summed in fp32 and rounded once; a maximum with a NaN is NaN. Outputs
// may be inputs. One pass: every element is read once and written once for each view.
// REQUIRES: dtype is floating, int64 or int32, and there is an input.
void reduce_in_order(std::span<void* const> out, std::span<const void* const> in, int64_t count,
                     DType dtype, Reduce op);

// The same sums, taken one input after the other: sums is x; then sums is sums + x (or the
// maximum) for each further input; y is sums in the end, rounded. `sums` has sum_dtype(dtype).
DType sum_dtype(DType dtype);
void begin_sum(void* sums, const void* x, int64_t count, DType dtype);
void add_to_sum(void* sums, const void* x, int64_t count, DType dtype, Reduce op);
void end_sum(void* y, const void* sums, int64_t count, DType dtype);

// memcpy by all threads of this rank; nothing when both are the same memory.
void copy_host(void* to, const void* from, int64_t bytes);

}  // namespace megatron::comm
