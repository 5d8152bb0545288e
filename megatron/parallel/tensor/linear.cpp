#include "megatron/parallel/tensor/linear.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/mappings.h"

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

}  // namespace

Variable column_parallel_linear(const Variable& x, const Variable& weight, const Variable& bias,
                                const TensorParallel& tp) {
  const TraceRange range("column_parallel_linear", x.stream());
  if (tp.size() == 1) return linear(x, weight, bias);
  const Tensor whole = tp.sequence_parallel ? gathered_sequence(x.data(), tp.group) : x.data();
  Tensor y = linear_forward(whole, weight, bias);  // [s, b, out/tp]
  return record("column_parallel_linear", std::move(y), {x, weight, bias},
                [x = x.data(), saved = linear_saved(weight, bias), tp](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor all = x;  // [s, b, in]
                  comm::Pending gathering;
                  if (tp.sequence_parallel && wants[1]) {  // beside the product that makes dx
                    all = Tensor(x.shape().with(0, x.size(0) * tp.size()), x.dtype(), x.stream());
                    gathering = comm::start_all_gather(all.view(), x.view(), tp.group, x.stream());
                  }
                  InputGradient dx(wants[0] ? linear_input_gradient(dy, saved) : Tensor(), tp);
                  gathering.wait();
                  Tensor dweight = wants[1] ? linear_weight_gradient(dy, all, saved) : Tensor();
                  Tensor dbias = wants[2] ? linear_bias_gradient(dy, saved) : Tensor();
                  return {dx.finish(), std::move(dweight), std::move(dbias)};
                });
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
  const Variable partial = linear(x, weight_, Variable());  // [s, b, out]
  return tp_.sequence_parallel ? reduce_scatter_to_sequence_region(partial, tp_)
                               : reduce_from_tensor_region(partial, tp_);
}

}  // namespace megatron
