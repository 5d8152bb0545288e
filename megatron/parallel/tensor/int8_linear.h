#pragma once

#include <cstdint>
#include <span>

#include "megatron/nn/module.h"
#include "megatron/parallel/parallel_context.h"

// Linear layers whose weight is kept in 8 bits (kernels/int8_matmul.h), for inference: no gradient
// flows through them. Activations, collectives and everything else stay in the model's dtype. A
// rank rounds its own part of a weight: a row-parallel layer has a scale for each row and rank.
namespace megatron {

// How inference keeps the weights of linear layers: as the model has them, or in 8 bits.
enum class InferenceWeights { kModel, kInt8 };

// A weight in 8 bits.
struct Int8Weight {
  Tensor numbers = {};  // [out, in] int8
  Tensor scales = {};   // [out] fp32
};

// Rounds a weight [out, in]; counts its memory as that of parameters.
Int8Weight quantized_rows(const Tensor& weight);

// As column_parallel_linear() and row_parallel_linear(). bias may be undefined. Without sequence
// parallelism.
Variable int8_column_parallel_linear(const Variable& x, const Int8Weight& weight,
                                     const Variable& bias, const TensorParallel& tp);
Variable int8_row_parallel_linear(const Variable& x, const Int8Weight& weight,
                                  const TensorParallel& tp);

// Throws ConfigError, naming the flag, unless such weights can be on the stream's device.
void expect_device_for(InferenceWeights weights, Stream stream);

// Rounds the weights of all column- and row-parallel layers of a model to 8 bits, layer by layer,
// and gives the memory of the others back. Embeddings, norms, biases and the layer that makes
// logits stay as they are. Throws as expect_device_for().
void keep_weights_in_int8(const Module& model, Stream stream);

// The bytes of a rank's parameters, apart from the allocator's rounding.
int64_t parameter_bytes(std::span<const ParameterSpec> specs, InferenceWeights weights,
                        int64_t tensor_parallel_size = 1);

}  // namespace megatron
