#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "megatron/nn/module.h"
#include "megatron/parallel/tensor/mappings.h"
#include "tests/support/tensors.h"

// Compares parts of tensor-parallel ranks with the whole.
namespace megatron {

// This rank's part of a whole tensor.
inline Tensor shard_of(const Tensor& whole, const Sharding& sharding) {
  const Shape local = sharding.local(whole.shape());
  Tensor part(local, whole.dtype(), whole.stream());
  for (const Sharding::Block& block : sharding.blocks(local)) {
    for (int64_t n = 0; n < block.shape.numel(); ++n) {
      int64_t rest = n;
      int64_t from = 0;
      int64_t to = 0;
      int64_t whole_stride = 1;
      int64_t local_stride = 1;
      for (int axis = local.rank() - 1; axis >= 0; --axis) {
        const int64_t index = rest % block.shape[axis];
        rest /= block.shape[axis];
        from += (block.whole[static_cast<size_t>(axis)] + index) * whole_stride;
        to += (block.local[static_cast<size_t>(axis)] + index) * local_stride;
        whole_stride *= whole.size(axis);
        local_stride *= local[axis];
      }
      part.span<float>()[static_cast<size_t>(to)] = whole.span<float>()[static_cast<size_t>(from)];
    }
  }
  return part;
}

inline Tensor own_slice(const Tensor& x, const TensorParallel& tp) {
  if (!tp.sequence_parallel) return x;
  const int64_t count = x.size(0) / tp.size();
  return copied(x.slice(tp.rank() * count, count));
}

// Checks that this rank's parameter gradients are those of the whole layer. With sequence
// parallelism parameters that every rank holds get partial sums.
inline void expect_gradients(const Module& got, const Module& want, const TensorParallel& tp) {
  const std::vector<Parameter> wanted = named_parameters(want);
  const std::vector<Parameter> here = named_parameters(got);
  ASSERT_EQ(here.size(), wanted.size());
  for (size_t i = 0; i < here.size(); ++i) {
    Tensor grad = here[i].variable.grad();
    ASSERT_EQ(grad.defined(), wanted[i].variable.grad().defined());
    if (!grad.defined()) continue;  // no rank adds the bias of a row-parallel layer here
    if (here[i].info.gradient_axes.contains(MeshAxis::kTensor)) grad = all_reduced(grad, tp.group);
    const Tensor& whole = wanted[i].variable.grad();
    // An element is a sum over the tokens: terms that cancel leave their rounding errors, so the
    // bound grows with the largest element, not with this one.
    const Tolerance bound{.absolute = 1e-5 * std::max(1.0, largest(whole))};
    expect_close(grad, shard_of(whole, here[i].info.sharding), bound, here[i].name);
  }
}

}  // namespace megatron
