#include "megatron/parallel/tensor/spread_norm.h"

#include "megatron/comm/collectives.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/spread_norm.h"
#include "megatron/ops/parameter_gradient.h"

namespace megatron {

Variable spread_rms_norm(const Variable& x, const Variable& weight, NormOptions options,
                         const TensorParallel& tp) {
  if (tp.size() == 1) return rms_norm(x, weight, options);
  const TraceRange range("spread_rms_norm", x.stream());
  expect_shape(weight.shape(), {x.size(-1)}, "spread_rms_norm: weight");
  const Tensor& in = x.data();
  const Stream stream = x.stream();
  const int64_t rows = in.rows().size(0);
  const kernels::SpreadNorm norm = {.columns = x.size(-1) * tp.size(),
                                    .weight_offset = options.one_plus_weight ? 1.0f : 0.0f,
                                    .epsilon = options.epsilon};
  const auto add_ranks = [group = tp.group](Tensor& sums) {
    comm::all_reduce(sums.view(), comm::Reduce::kSum, group, sums.stream());
  };
  Tensor squares({rows}, DType::kFloat32, stream);
  kernels::row_squares(squares.view(), in.rows(), stream);
  add_ranks(squares);
  Tensor y = empty_like(in);
  Tensor rstd({rows}, DType::kFloat32, stream);
  kernels::spread_norm_forward(y.rows(), rstd.view(), in.rows(), squares.view(),
                               weight.data().view(), norm, stream);
  return record(
      "spread_rms_norm", y, {x, weight},
      [x = in, w = weight.data(), rstd, norm, add_ranks, sink = weight.grad_sink()](
          const Tensor& dy, const Wants& wants) -> Grads {
        const Stream s = dy.stream();
        Tensor dots({rstd.numel()}, DType::kFloat32, s);
        kernels::spread_norm_dots(dots.view(), dy.rows(), x.rows(), rstd.view(), w.view(), norm, s);
        add_ranks(dots);
        Tensor dx = wants[0] ? empty_like(x) : Tensor();
        Tensor products = wants[1] ? Tensor(x.rows().shape, DType::kFloat32, s) : Tensor();
        kernels::spread_norm_backward(wants[0] ? dx.rows() : TensorView{},
                                      wants[1] ? products.view() : TensorView{}, dy.rows(),
                                      x.rows(), rstd.view(), dots.view(), w.view(), norm, s);
        ParameterGradient dweight(sink, w.shape(), w.dtype(), s, wants[1]);
        if (wants[1]) {
          kernels::sum_rows(dweight.view(), products.view(), dweight.beta(), s);
        }
        return {dx, dweight.result()};
      });
}

}  // namespace megatron
