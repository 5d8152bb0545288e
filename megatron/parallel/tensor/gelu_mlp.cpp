#include "megatron/parallel/tensor/gelu_mlp.h"

#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/gelu_matmul.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {

Variable gelu_mlp(const Variable& x, const Variable& weight1, const Variable& bias1,
                  const Variable& weight2, const TensorParallel& tp) {
  const TraceRange range("gelu_mlp", x.stream());
  const Stream stream = x.stream();
  const Tensor whole = tp.sequence_parallel ? gathered_sequence(x.data(), tp.group) : x.data();
  Tensor y(whole.shape().with(-1, weight1.size(0)), x.dtype(), stream);  // [s, b, f/tp]
  Tensor pre = grad_enabled() ? empty_like(y) : Tensor();
  kernels::gelu_matmul_forward(y.rows(), pre.defined() ? pre.rows() : TensorView{}, whole.rows(),
                               weight1.data().view(),
                               bias1.defined() ? bias1.data().view() : ConstView{}, stream);
  Tensor z = linear_forward(y, weight2, Variable());  // [s, b, h]

  return record(
      "gelu_mlp", std::move(z), {x, weight1, bias1, weight2},
      [x = x.data(), pre, y, saved1 = linear_saved(weight1, bias1),
       saved2 = linear_saved(weight2, Variable()),
       tp](const Tensor& dz, const Wants& wants) mutable -> Grads {
        Tensor dpre = empty_like(pre);
        ParameterGradient dbias1(saved1.bias_sink, {pre.size(-1)}, pre.dtype(), pre.stream(),
                                 wants[2]);
        kernels::gelu_matmul_backward(dpre.rows(), dbias1.view(), dz.rows(), saved2.weight.view(),
                                      std::as_const(pre).rows(), dbias1.beta(), pre.stream());
        pre = Tensor();
        Tensor dweight2 = wants[3] ? linear_weight_gradient(dz, y, saved2) : Tensor();
        y = Tensor();
        Grads grads =
            column_parallel_gradients(dpre, x, saved1, Wants({wants[0], wants[1], false}), tp);
        return {std::move(grads[0]), std::move(grads[1]), dbias1.result(), std::move(dweight2)};
      });
}

}  // namespace megatron
