#include "megatron/parallel/tensor/mappings.h"

#include <cstddef>

#include <fmt/format.h>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/kernels/copy_heads.h"

namespace megatron {

int64_t sequence_slice_size(const Tensor& x, const comm::Group& group) {
  const int64_t s = x.size(0);
  if (s % group.size() == 0) return s / group.size();
  throw ShapeError(
      fmt::format("sequence parallel: a sequence of {} tokens does not divide among {} ranks; make "
                  "it a multiple, or run without --sequence-parallel",
                  s, group.size()));
}

namespace {

Tensor own_slice(const Tensor& x, const comm::Group& group) {
  const int64_t count = sequence_slice_size(x, group);
  return x.slice(group.rank() * count, count);
}

}  // namespace

Tensor all_reduced(const Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return x;
  Tensor y = copied(x);
  comm::all_reduce(y.view(), comm::Reduce::kSum, group, y.stream());
  return y;
}

Tensor gathered_sequence(const Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return x;
  Tensor y(x.shape().with(0, x.size(0) * group.size()), x.dtype(), x.stream());
  comm::all_gather(y.view(), x.view(), group, x.stream());
  return y;
}

Tensor scattered_sum(const Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return x;
  Tensor y(x.shape().with(0, sequence_slice_size(x, group)), x.dtype(), x.stream());
  comm::reduce_scatter(y.view(), x.view(), comm::Reduce::kSum, group, x.stream());
  return y;
}

Tensor own_part(const Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return x;
  if (x.numel() % group.size() != 0) {
    throw ShapeError(
        fmt::format("--distribute-saved-activations: {} elements do not divide among {} ranks; "
                    "run without it",
                    x.numel(), group.size()));
  }
  return copied(own_slice(x.reshape({x.numel()}), group));
}

Tensor gathered_parts(const Tensor& part, const Shape& shape, const comm::Group& group) {
  return gathered_sequence(part, group).reshape(shape);
}

Tensor gathered_last_axis(const Tensor& x, const comm::Group& group) {
  const int ranks = group.size();
  if (ranks == 1) return x;
  const int64_t columns = x.size(-1);
  const int64_t rows = x.numel() / columns;
  const Tensor parts = gathered_sequence(x.reshape({1, rows, columns}), group);
  const Tensor y(x.shape().with(-1, columns * ranks), x.dtype(), x.stream());
  // The columns of each rank are a head of the whole rows.
  const kernels::HeadsView heads =
      kernels::heads_of(y.reshape({rows, 1, columns * ranks}).view(), ranks);
  kernels::ConstHeadsView from = heads;
  from.data = parts.view().data;
  from.stride_s = columns;
  from.stride_head = rows * columns;
  from.heads_per_group = ranks;
  kernels::copy_heads(heads, from, x.stream());
  return y;
}

namespace {

// This rank's part of the last axis.
Tensor own_columns(const Tensor& x, const comm::Group& group) {
  const int64_t columns = x.size(-1) / group.size();
  const int64_t rows = x.numel() / x.size(-1);
  const Tensor y(x.shape().with(-1, columns), x.dtype(), x.stream());
  const kernels::HeadsView to = kernels::heads_of(y.reshape({rows, 1, columns}).view(), 1);
  kernels::ConstHeadsView from = to;
  from.data =
      static_cast<const std::byte*>(x.view().data) + group.rank() * columns * size_of(x.dtype());
  from.stride_s = x.size(-1);
  kernels::copy_heads(to, from, x.stream());
  return y;
}

}  // namespace

Tensor scattered_sum_of_last_axis(const Tensor& x, const comm::Group& group) {
  const int ranks = group.size();
  if (ranks == 1) return x;
  const int64_t columns = x.size(-1) / ranks;
  const int64_t rows = x.numel() / x.size(-1);
  Tensor parts({ranks, rows, columns}, x.dtype(), x.stream());
  const kernels::ConstHeadsView from =
      kernels::heads_of(x.reshape({rows, 1, x.size(-1)}).view(), ranks);
  kernels::HeadsView to = kernels::heads_of(parts.reshape({rows, 1, x.size(-1)}).view(), ranks);
  to.stride_s = columns;
  to.stride_head = rows * columns;
  to.heads_per_group = ranks;
  kernels::copy_heads(to, from, x.stream());
  Tensor y(x.shape().with(-1, columns), x.dtype(), x.stream());
  comm::reduce_scatter(y.view(), ConstView(parts.view()), comm::Reduce::kSum, group, x.stream());
  return y;
}

Variable copy_to_tensor_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("copy_to_tensor_region", x.data(), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {all_reduced(dy, group)};
                });
}

Variable reduce_from_tensor_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("reduce_from_tensor_region", all_reduced(x.data(), tp.group), {x},
                [](const Tensor& dy, const Wants&) -> Grads { return {dy}; });
}

Variable gather_from_tensor_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("gather_from_tensor_region", gathered_last_axis(x.data(), tp.group), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {own_columns(dy, group)};
                });
}

Variable scatter_to_sequence_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("scatter_to_sequence_region", copied(own_slice(x.data(), tp.group)), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {gathered_sequence(dy, group)};
                });
}

Variable reduce_scatter_to_sequence_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("reduce_scatter_to_sequence_region", scattered_sum(x.data(), tp.group), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {gathered_sequence(dy, group)};
                });
}

Variable gather_from_sequence_region(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("gather_from_sequence_region", gathered_sequence(x.data(), tp.group), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {scattered_sum(dy, group)};
                });
}

Variable gather_for_equal_ranks(const Variable& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  return record("gather_for_equal_ranks", gathered_sequence(x.data(), tp.group), {x},
                [group = tp.group](const Tensor& dy, const Wants&) -> Grads {
                  return {copied(own_slice(dy, group))};
                });
}

}  // namespace megatron
