#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"

// Collectives as differentiable functions over the tensor-parallel group, in conjugate pairs
// (Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; Korthikanti et al. 2022, arXiv:2205.05198,
// sec. 4.2.2). "Sequence" is the first axis of [s, b, h].
//
//   function                            forward                      backward
//   copy_to_tensor_region               identity                     all_reduce
//   reduce_from_tensor_region           all_reduce                   identity
//   gather_from_tensor_region           all_gather of last axis      keep own slice
//   scatter_to_sequence_region          keep own slice               all_gather
//   gather_from_sequence_region         all_gather                   reduce_scatter
//   gather_for_equal_ranks              all_gather                   keep own slice
//   reduce_scatter_to_sequence_region   reduce_scatter               all_gather
//
// Out of place. In a group of one each of them is the identity, without a copy.
namespace megatron {

Variable copy_to_tensor_region(const Variable& x, const TensorParallel& tp);
Variable reduce_from_tensor_region(const Variable& x, const TensorParallel& tp);
// REQUIRES: the following computation is the same on all ranks.
Variable gather_from_tensor_region(const Variable& x, const TensorParallel& tp);
// Throw ShapeError unless the sequence is a multiple of the group's size.
Variable scatter_to_sequence_region(const Variable& x, const TensorParallel& tp);
Variable reduce_scatter_to_sequence_region(const Variable& x, const TensorParallel& tp);
Variable gather_from_sequence_region(const Variable& x, const TensorParallel& tp);
// For computations that are the same on every rank, whose gradients are therefore equal.
Variable gather_for_equal_ranks(const Variable& x, const TensorParallel& tp);

// The same without gradient.
//   all_reduced          [..]        -> [..]
//   gathered_sequence    [s/tp, ..]  -> [s, ..]
//   scattered_sum        [s, ..]     -> [s/tp, ..]
//   gathered_last_axis   [.., v/tp]  -> [.., v]
//   scattered_sum_of_last_axis  [.., v] -> [.., v/tp]
//   own_part             [..]        -> [n/tp]: a copy of this rank's part of the n elements
//   gathered_parts       [n/tp]      -> [..]
Tensor all_reduced(const Tensor& x, const comm::Group& group);
Tensor gathered_sequence(const Tensor& x, const comm::Group& group);
Tensor scattered_sum(const Tensor& x, const comm::Group& group);
Tensor gathered_last_axis(const Tensor& x, const comm::Group& group);
Tensor scattered_sum_of_last_axis(const Tensor& x, const comm::Group& group);
// Throws ShapeError unless n is a multiple of the group's size.
Tensor own_part(const Tensor& x, const comm::Group& group);
Tensor gathered_parts(const Tensor& part, const Shape& shape, const comm::Group& group);

// Rows of a rank's slice of x. Throws ShapeError unless the sequence is a multiple of the group's
// size.
int64_t sequence_slice_size(const Tensor& x, const comm::Group& group);

}  // namespace megatron
