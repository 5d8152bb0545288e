#pragma once

#include <cstdint>
#include <span>

#include "megatron/nn/module.h"
#include "megatron/parallel/parallel_context.h"

// Linear layers whose weight is kept in 8 bits, for inference: no gradient flows through them. In
// int8 (kernels/int8_matmul.h) the input of a layer stays as it is; in FP8 (kernels/fp8_rows.h) it
// is rounded, too, each token with a scale of its own. All other activations and the collectives
// stay in the model's dtype. A rank rounds its own part of a weight: a row-parallel layer has a
// scale for each row and rank.
namespace megatron {

// Format of linear weights in inference: the model's dtype, int8 or FP8 (E4M3).
enum class InferenceWeights { kModel, kInt8, kFp8 };
const char* name_of(InferenceWeights weights);

// A weight in 8 bits.
struct RoundedWeight {
  Tensor numbers = {};  // [out, in] int8 or E4M3
  Tensor scales = {};   // [out] fp32
};

// Rounds a weight [out, in]; counts its memory as that of parameters. Throws as
// expect_weight_for(). REQUIRES: form is not kModel.
RoundedWeight rounded_rows(const Tensor& weight, InferenceWeights form);

// As column_parallel_linear() and row_parallel_linear(). bias may be undefined. Without sequence
// parallelism.
Variable rounded_column_parallel_linear(const Variable& x, const RoundedWeight& weight,
                                        const Variable& bias, const TensorParallel& tp);
Variable rounded_row_parallel_linear(const Variable& x, const RoundedWeight& weight,
                                     const TensorParallel& tp);

// Throws ConfigError, naming the flag, unless such weights can be on the stream's device: whole
// numbers are for the CPU, FP8 for the CPU and GPUs of compute capability 9.0.
void expect_device_for(InferenceWeights weights, Stream stream);
// The same of one weight: a GPU multiplies FP8 made of 16 bits, in multiples of 16 rows and
// columns.
void expect_weight_for(InferenceWeights form, const Shape& weight, DType dtype, Stream stream);

// Rounds the weights of all column- and row-parallel layers of a model, layer by layer, and frees
// the unrounded ones; no effect for kModel. Embeddings, norms, biases and the output layer keep the
// model's dtype. Throws as the two functions above.
void round_weights(const Module& model, InferenceWeights form, Stream stream);

// The bytes of a rank's parameters, without the allocator's rounding.
int64_t parameter_bytes(std::span<const Parameter> specs, InferenceWeights weights,
                        int64_t tensor_parallel_size = 1);

}  // namespace megatron
