#pragma once

#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cpu {

// matmul of fp32 or bf16 matrices by oneDNN; every extent is at least 1. Creates one primitive per
// shape, dtype and transposition, and keeps it per thread.
void onednn_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream stream);

// True if the processor multiplies bf16 matrices faster than fp32 ones, so that oneDNN's bf16 path
// pays: with AMX, or on AMD (two bf16 dot products a cycle from Zen 4 on). Intel cores without AMX
// issue one bf16 dot product every other cycle but two fp32 FMAs a cycle.
bool has_fast_bf16_products();

}  // namespace megatron::kernels::cpu
