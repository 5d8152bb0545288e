#include "megatron/parallel/tensor/gelu_mlp.h"

#include <utility>

#include "megatron/core/turns.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/gelu_matmul.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/ops/workspace.h"
#include "megatron/parallel/tensor/linear.h"

namespace megatron {

Variable gelu_mlp(const Variable& x, const Variable& weight1, const Variable& bias1,
                  const Variable& weight2, const TensorParallel& tp,
                  const GeluMlpOptions& options) {
  const TraceRange range("gelu_mlp", x.stream());
  const Stream stream = x.stream();
  Tensor y(whole_shape(x.data(), tp).with(-1, weight1.size(0)), x.dtype(), stream);  // [s, b, f/tp]
  Tensor pre = grad_enabled() ? empty_like(y) : Tensor();
  for_whole_rows(x.data(), tp, [&](int64_t first, const Tensor& rows) {
    Tensor part = y.slice(first, rows.size(0));
    Tensor pre_part = pre.defined() ? pre.slice(first, rows.size(0)) : Tensor();
    kernels::gelu_matmul_forward(part.rows(), pre_part.defined() ? pre_part.rows() : TensorView{},
                                 rows.rows(), weight1.data().view(),
                                 bias1.defined() ? bias1.data().view() : ConstView{}, stream);
  });
  start_other();  // as RowParallelLinear
  Tensor z = row_parallel_forward(y, weight2, tp, options.may_split_k && !grad_enabled());
  if (options.drops_value && grad_enabled()) {
    y.drop_until_access([pre] {
      Tensor again = empty_like(pre);
      kernels::bias_activation_forward(again.rows(), pre.rows(), ConstView{}, Activation::kGeluTanh,
                                       again.stream());
      return again;
    });
  }

  return record(
      "gelu_mlp", std::move(z), {x, weight1, bias1, weight2},
      [x = x.data(), pre, y, saved1 = linear_saved(weight1, bias1),
       saved2 = linear_saved(weight2, Variable()),
       tp](const Tensor& dz, const Wants& wants) mutable -> Grads {
        Tensor dpre = empty_like(pre);
        ParameterGradient dbias1(saved1.bias_sink, {pre.size(-1)}, pre.dtype(), pre.stream(),
                                 wants[2]);
        Workspace workspace(wants[2] ? kernels::bias_activation_backward_workspace_bytes(
                                           pre.rows().shape, pre.stream())
                                     : 0,
                            pre.stream());
        float beta = dbias1.beta();
        Tensor dweight2 = row_parallel_gradients(
            dz, y, saved2, wants[3], tp, [&](int64_t first, const Tensor& rows) {
              Tensor part = dpre.slice(first, rows.size(0));
              kernels::gelu_matmul_backward(part.rows(), dbias1.view(), rows.rows(),
                                            saved2.weight.view(),
                                            std::as_const(pre).slice(first, rows.size(0)).rows(),
                                            beta, workspace.view(), dpre.stream());
              beta = 1.0f;
            });
        pre = Tensor();
        y = Tensor();
        Grads grads =
            column_parallel_gradients(dpre, x, saved1, Wants({wants[0], wants[1], false}), tp);
        return {std::move(grads[0]), std::move(grads[1]), dbias1.result(), std::move(dweight2)};
      });
}

}  // namespace megatron
