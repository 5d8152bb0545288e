#include "megatron/ops/bias_activation.h"

#include "megatron/device/trace.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/ops/parameter_gradient.h"

namespace megatron {
namespace {

// The width of y. Throws ShapeError if the activation is gated and the width odd.
int64_t output_width(int64_t width, Activation activation) {
  if (!is_gated(activation)) return width;
  if (width % 2 != 0) {
    throw ShapeError("bias_activation: a gated activation splits the last axis of x in halves, " +
                     std::to_string(width) + " is odd");
  }
  return width / 2;
}

ConstView view_or_null(const Tensor& x) { return x.defined() ? x.view() : ConstView{}; }

}  // namespace

Variable bias_activation(const Variable& x, const Variable& bias, Activation activation) {
  const TraceRange range("bias_activation", x.stream());
  const Tensor b = bias.defined() ? bias.data() : Tensor();
  if (b.defined()) expect_shape(b.shape(), {x.size(-1)}, "bias_activation: bias");

  Tensor y(x.shape().with(-1, output_width(x.size(-1), activation)), x.dtype(), x.stream());
  kernels::bias_activation_forward(y.rows(), x.data().rows(), view_or_null(b), activation,
                                   y.stream());

  return record("bias_activation", y, {x, bias},
                [x = x.data(), b, sink = bias.defined() ? bias.grad_sink() : GradSink(),
                 activation](const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor dx = x.is_sole_owner() ? x : empty_like(x);
                  kernels::bias_activation_backward(dx.rows(), dy.rows(), x.rows(), view_or_null(b),
                                                    activation, dx.stream());
                  if (!wants[1]) return {dx, Tensor()};
                  ParameterGradient dbias(sink, b.shape(), b.dtype(), dx.stream(), true);
                  kernels::sum_rows(dbias.view(), dx.rows(), dbias.beta(), dx.stream());
                  return {dx, dbias.result()};
                });
}

}  // namespace megatron
