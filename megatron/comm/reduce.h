#pragma once

#include <cstdint>
#include <span>

#include "megatron/comm/call.h"

namespace megatron::comm {

// Writes in[0][i] + in[1][i] + .. (or their maximum), taken in that order, to element i of every
// output. 16-bit elements are summed in fp32 and rounded once; a maximum with a NaN is NaN. Outputs
// may be inputs. One pass: reads and writes every element once for each view.
// REQUIRES: dtype is floating, int64 or int32, and there is an input.
void reduce_in_order(std::span<void* const> out, std::span<const void* const> in, int64_t count,
                     DType dtype, Reduce op);

// The same sums, one input at a time: begin_sum sets sums to x, add_to_sum adds each further input
// (or takes the maximum), end_sum writes sums to y, rounded. `sums` has sum_dtype(dtype).
DType sum_dtype(DType dtype);
void begin_sum(void* sums, const void* x, int64_t count, DType dtype);
void add_to_sum(void* sums, const void* x, int64_t count, DType dtype, Reduce op);
void end_sum(void* y, const void* sums, int64_t count, DType dtype);

// memcpy by all threads of this rank; does nothing if both pointers are equal.
void copy_host(void* to, const void* from, int64_t bytes);

}  // namespace megatron::comm
