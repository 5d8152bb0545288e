#include "megatron/ops/dropout.h"

#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/ops/parameter_gradient.h"

namespace megatron {
namespace {

void expect_sequence(const Variable& x, const char* who) {
  if (x.shape().rank() == 3) return;
  throw ShapeError(std::string(who) + ": x has shape " + x.shape().str() + ", expected [s, b, h]");
}

// The gradient of x in dropout(x): dy itself if nothing changes.
Tensor undropped(const Tensor& dy, DType dtype, const DropoutKey& key, int64_t first_column = 0) {
  if (!key.is_active() && dy.dtype() == dtype) return dy;
  Tensor dx(dy.shape(), dtype, dy.stream());
  kernels::dropout(dx.view(), dy.view(), key, first_column, dx.stream());
  return dx;
}

}  // namespace

Variable dropout(const Variable& x, const DropoutKey& key, int64_t first_column) {
  if (!key.is_active()) return x;
  const TraceRange range("dropout", x.stream());
  expect_sequence(x, "dropout");
  invariant(first_column % 8 == 0, "dropout: the first column is a multiple of 8");
  Tensor y = empty_like(x.data());
  kernels::dropout(y.view(), x.data().view(), key, first_column, y.stream());
  return record("dropout", y, {x}, [key, first_column](const Tensor& dy, const Wants&) -> Grads {
    return {undropped(dy, dy.dtype(), key, first_column)};
  });
}

Variable bias_dropout_add(const Variable& x, const Variable& bias, const Variable& residual,
                          const DropoutKey& key) {
  const TraceRange range("bias_dropout_add", x.stream());
  expect_sequence(x, "bias_dropout_add");
  if (residual.defined()) expect_shape(residual.shape(), x.shape(), "bias_dropout_add: residual");
  if (bias.defined()) expect_shape(bias.shape(), {x.size(-1)}, "bias_dropout_add: bias");

  Tensor y = empty_like(residual.defined() ? residual.data() : x.data());
  kernels::bias_dropout_add_forward(
      y.view(), x.data().view(), bias.defined() ? bias.data().view() : ConstView{},
      residual.defined() ? residual.data().view() : ConstView{}, key, y.stream());

  return record("bias_dropout_add", y, {x, bias, residual},
                [key, x_dtype = x.dtype(), bias_dtype = bias.defined() ? bias.dtype() : x.dtype(),
                 sink = bias.defined() ? bias.grad_sink() : GradSink()](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor dx = wants[0] || wants[1] ? undropped(dy, x_dtype, key) : Tensor();
                  ParameterGradient dbias(sink, {dy.size(-1)}, bias_dtype, dy.stream(), wants[1]);
                  if (wants[1]) {
                    kernels::sum_rows(dbias.view(), std::as_const(dx).rows(), dbias.beta(),
                                      dy.stream());
                  }
                  return {dx, dbias.result(), wants[2] ? dy : Tensor()};
                });
}

}  // namespace megatron
