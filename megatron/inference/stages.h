#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"
#include "megatron/transformer/config.h"

// Pipeline-parallel inference: activations go from stage to stage, and the first rank of the last
// stage, the head rank, broadcasts the result.
namespace megatron {

// Receives from the previous stage. REQUIRES: this is not the first stage.
Variable received_from_previous(const ParallelContext& parallel, const Shape& shape, DType dtype,
                                Stream stream);
// Sends x to the next stage; does nothing on the last stage.
void send_to_next(const ParallelContext& parallel, const Variable& x);

// Receives activations [s, b, h] from the previous stage; undefined on the first stage.
Variable received_activations(const ParallelContext& parallel, const TransformerConfig& config,
                              int64_t s, int64_t b, Stream stream);

// True on the first rank of the last stage.
bool is_head_rank(const ParallelContext& parallel);
// Broadcasts x, on the host, from the head rank to all ranks of the model.
void share_from_head(const ParallelContext& parallel, Tensor& x);
void share_from_head(const ParallelContext& parallel, TensorView x);

}  // namespace megatron
