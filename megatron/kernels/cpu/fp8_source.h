#pragma once

#include "megatron/kernels/fp8.h"

namespace megatron::kernels::cpu {

// v [rows, cols] in fp32, as Fp8Source says.
void evaluate_source(TensorView v, const Fp8Source& source, Stream stream);

// Fp8Target::sums of v [rows, cols].
void sum_source(float* sums, const float* v, int64_t rows, int64_t cols);

}  // namespace megatron::kernels::cpu
