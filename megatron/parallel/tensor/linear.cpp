#include "megatron/parallel/tensor/linear.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/pieces.h"

namespace megatron {
namespace {

int64_t divided(int64_t size, int64_t by, const char* what) {
  if (size % by == 0) return size / by;
  throw ConfigError(
      fmt::format("{} {} does not divide among {} tensor-parallel ranks; choose another "
                  "--tensor-model-parallel-size",
                  what, size, by));
}

Sharding sharded(const TensorParallel& tp, int axis, int64_t parts = 1) {
  return {.axis = axis, .index = tp.rank(), .count = tp.size(), .parts = parts};
}

// The collective that makes dx whole, begun at once and waited for by finish().
class InputGradient {
 public:
  InputGradient(Tensor partial, const TensorParallel& tp) : partial_(std::move(partial)) {
    if (!partial_.defined() || tp.size() == 1) {
      dx_ = partial_;
    } else if (tp.sequence_parallel) {
      dx_ = Tensor(partial_.shape().with(0, partial_.size(0) / tp.size()), partial_.dtype(),
                   partial_.stream());
      pending_ = comm::start_reduce_scatter(dx_.view(), partial_.view(), comm::Reduce::kSum,
                                            tp.group, dx_.stream());
    } else {
      dx_ = partial_;
      pending_ = comm::start_all_reduce(dx_.view(), comm::Reduce::kSum, tp.group, dx_.stream());
    }
    if (!tp.overlaps_gradients) pending_.wait();
  }

  Tensor finish() {
    pending_.wait();
    return std::move(dx_);
  }

 private:
  Tensor partial_;
  Tensor dx_;
  comm::Pending pending_;
};

// x [s, b, in], or [s/tp, b, in] with sequence parallelism -> [s, b, out/tp]
Tensor column_parallel_forward(const Tensor& x, const Variable& weight, const Variable& bias,
                               const TensorParallel& tp) {
  if (!tp.sequence_parallel) return linear_forward(x, weight, bias);
  if (!tp.overlaps_products) return linear_forward(gathered_sequence(x, tp.group), weight, bias);
  const int64_t rows = x.size(0);
  const Shape whole = x.shape().with(0, rows * tp.size());
  const Tensor y(whole.with(-1, weight.size(0)), x.dtype(), x.stream());
  gathered_by_pieces(x, tp.group, [&](int rank, const Tensor& piece) {
    Tensor part = y.slice(rank * rows, rows);
    linear_forward_into(part, piece, weight, bias);
  });
  return y;
}

// The product of a row-parallel layer and the sum over ranks, piece by piece.
//   x [s, b, in/tp]   weight [out, in/tp]   -> [s/tp, b, out]
Variable row_parallel_by_pieces(const Variable& x, const Variable& weight,
                                const TensorParallel& tp) {
  const TraceRange range("row_parallel_linear", x.stream());
  const int64_t rows = sequence_slice_size(x.data(), tp.group);
  Tensor y = summed_by_pieces(tp.group, [&](int rank) {
    return linear_forward(x.data().slice(rank * rows, rows), weight, Variable());
  });
  return record(
      "row_parallel_linear", std::move(y), {x, weight},
      [x = x.data(), saved = linear_saved(weight, Variable()), tp](const Tensor& dy,
                                                                   const Wants& wants) -> Grads {
        const int64_t count = dy.size(0);
        Tensor dx = wants[0] ? empty_like(x) : Tensor();
        const Tensor all = gathered_by_pieces(dy, tp.group, [&](int rank, const Tensor& piece) {
          if (!dx.defined()) return;
          Tensor part = dx.slice(rank * count, count);
          linear_input_gradient_into(part, piece, saved);
        });
        Tensor own = all.slice(tp.rank() * count, count);
        copy_into(own, dy);
        return {std::move(dx), wants[1] ? linear_weight_gradient(all, x, saved) : Tensor()};
      });
}

}  // namespace

Variable column_parallel_linear(const Variable& x, const Variable& weight, const Variable& bias,
                                const TensorParallel& tp) {
  const TraceRange range("column_parallel_linear", x.stream());
  if (tp.size() == 1) return linear(x, weight, bias);
  Tensor y = column_parallel_forward(x.data(), weight, bias, tp);  // [s, b, out/tp]
  return record(
      "column_parallel_linear", std::move(y), {x, weight, bias},
      [x = x.data(), saved = linear_saved(weight, bias), tp](const Tensor& dy, const Wants& wants) {
        return column_parallel_gradients(dy, x, saved, wants, tp);
      });
}

Grads column_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                                const Wants& wants, const TensorParallel& tp) {
  Tensor all = x;  // [s, b, in]
  comm::Pending gathering;
  if (tp.sequence_parallel && wants[1]) {  // beside the product that makes dx
    all = Tensor(x.shape().with(0, x.size(0) * tp.size()), x.dtype(), x.stream());
    gathering = comm::start_all_gather(all.view(), x.view(), tp.group, x.stream());
    if (!tp.overlaps_gradients) gathering.wait();
  }
  InputGradient dx(wants[0] ? linear_input_gradient(dy, saved) : Tensor(), tp);
  gathering.wait();
  Tensor dweight = wants[1] ? linear_weight_gradient(dy, all, saved) : Tensor();
  Tensor dbias = wants[2] ? linear_bias_gradient(dy, saved) : Tensor();
  return {dx.finish(), std::move(dweight), std::move(dbias)};
}

ColumnParallelLinear::ColumnParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                                           const LinearOptions& options, const Placement& placement)
    : tp_(tp) {
  const int64_t parts = options.stacked_parts;
  const int64_t local = parts * divided(out / parts, tp.size(), "an output size of");
  const Sharding sharding = sharded(tp, 0, parts);
  weight_ =
      add_parameter("weight", {local, in}, {.init = options.init, .sharding = sharding}, placement);
  if (options.has_bias) {
    bias_ =
        add_parameter("bias", {local}, {.init = Init::zeros(), .sharding = sharding}, placement);
  }
}

Variable ColumnParallelLinear::forward(const Variable& x) const {
  return column_parallel_linear(x, weight_, bias_, tp_);
}

Variable ColumnParallelLinear::forward_without_bias(const Variable& x) const {
  return column_parallel_linear(x, weight_, Variable(), tp_);
}

RowParallelLinear::RowParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                                     const LinearOptions& options, const Placement& placement)
    : tp_(tp) {
  const int64_t local = divided(in, tp.size(), "an input size of");
  weight_ = add_parameter("weight", {out, local},
                          {.init = options.init, .sharding = sharded(tp, 1)}, placement);
  if (options.has_bias) bias_ = add_parameter("bias", {out}, {.init = Init::zeros()}, placement);
}

Variable RowParallelLinear::forward_without_bias(const Variable& x) const {
  if (tp_.overlaps_products && tp_.size() > 1) return row_parallel_by_pieces(x, weight_, tp_);
  return reduced(linear(x, weight_, Variable()));  // [s, b, out]
}

Variable RowParallelLinear::reduced(const Variable& partial) const {
  return tp_.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp_)
                               : reduce_from_tensor_region(partial, tp_);
}

}  // namespace megatron
