#include "megatron/ops/bias_activation.h"

#include "megatron/device/trace.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/ops/optional_view.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/ops/workspace.h"

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

Workspace workspace_of(const Tensor& x, bool wants_bias) {
  if (!wants_bias) return Workspace(0, x.stream());
  const Shape rows = x.rows().shape;
  return Workspace(kernels::bias_activation_backward_workspace_bytes(rows, x.stream()), x.stream());
}

}  // namespace

Variable bias_activation(const Variable& x, const Variable& bias, Activation activation) {
  const TraceRange range("bias_activation", x.stream());
  const Tensor b = bias.defined() ? bias.data() : Tensor();
  if (b.defined()) expect_shape(b.shape(), {x.size(-1)}, "bias_activation: bias");

  Tensor y(x.shape().with(-1, output_width(x.size(-1), activation)), x.dtype(), x.stream());
  kernels::bias_activation_forward(y.rows(), x.data().rows(), view_or_none(b), activation,
                                   y.stream());

  return record("bias_activation", y, {x, bias},
                [x = x.data(), b, sink = bias.defined() ? bias.grad_sink() : GradSink(),
                 activation](const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor dx = x.is_sole_owner() ? x : empty_like(x);
                  const Stream s = dx.stream();
                  ParameterGradient dbias(sink, b.shape(), b.dtype(), s, wants[1]);
                  Workspace workspace = workspace_of(x, wants[1]);
                  kernels::bias_activation_backward(dx.rows(), dbias.view(), dy.rows(), x.rows(),
                                                    view_or_none(b), activation, dbias.beta(),
                                                    workspace.view(), s);
                  return {dx, dbias.result()};
                });
}

}  // namespace megatron
