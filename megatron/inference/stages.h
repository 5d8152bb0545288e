#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"
#include "megatron/transformer/config.h"

// How the ranks of a model work together when nothing is trained: activations go from stage to
// stage, and the first rank of the last stage tells the others what came out.
namespace megatron {

// What the stage before sends; this stage is not the first one.
Variable received_from_previous(const ParallelContext& parallel, const Shape& shape, DType dtype,
                                Stream stream);
// Sends x to the stage after; nothing on the last stage.
void send_to_next(const ParallelContext& parallel, const Variable& x);

// The activations [s, b, h] of the stage before; undefined on the first stage.
Variable received_activations(const ParallelContext& parallel, const TransformerConfig& config,
                              int64_t s, int64_t b, Stream stream);

// The first rank of the last stage.
bool is_head_rank(const ParallelContext& parallel);
// Gives all ranks of the model the x of the head rank. x is on the host.
void share_from_head(const ParallelContext& parallel, Tensor& x);
void share_from_head(const ParallelContext& parallel, TensorView x);

}  // namespace megatron
