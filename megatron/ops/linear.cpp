#include "megatron/ops/linear.h"

#include <utility>

#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"

namespace megatron {
namespace {

using kernels::Transpose;

constexpr ConstView kNoBias{};

// dweight = dy^T x, into the main gradient where there is one (then the result is undefined).
Tensor weight_gradient(const Tensor& dy, const Tensor& x, const GradSink& sink) {
  Tensor dweight =
      sink ? sink.main_grad() : Tensor({dy.size(-1), x.size(-1)}, x.dtype(), x.stream());
  kernels::matmul(dweight.view(), dy.rows(), Transpose::kYes, x.rows(), Transpose::kNo, kNoBias,
                  sink ? 1.0f : 0.0f, x.stream());
  return sink ? Tensor() : dweight;
}

Tensor bias_gradient(const Tensor& dy, const GradSink& sink) {
  Tensor dbias = sink ? sink.main_grad() : Tensor({dy.size(-1)}, dy.dtype(), dy.stream());
  kernels::sum_rows(dbias.view(), dy.rows(), sink ? 1.0f : 0.0f, dy.stream());
  return sink ? Tensor() : dbias;
}

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  const int64_t out = weight.size(0);
  expect_shape(weight.shape(), {out, x.size(-1)}, "linear: weight");
  expect_dtype(weight.dtype(), x.dtype(), "linear: weight");
  if (bias.defined()) expect_shape(bias.shape(), {out}, "linear: bias");

  Tensor y(x.shape().with(-1, out), x.dtype(), x.stream());
  kernels::matmul(y.rows(), x.data().rows(), Transpose::kNo, weight.data().view(), Transpose::kYes,
                  bias.defined() ? bias.data().view() : kNoBias, 0.0f, x.stream());

  return record("linear", std::move(y), {x, weight, bias},
                [x = x.data(), weight = weight.data(), weight_sink = weight.grad_sink(),
                 bias_sink = bias.defined() ? bias.grad_sink() : GradSink()](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor dx;
                  if (wants[0]) {
                    dx = empty_like(x);
                    kernels::matmul(dx.rows(), dy.rows(), Transpose::kNo, weight.view(),
                                    Transpose::kNo, kNoBias, 0.0f, dx.stream());
                  }
                  Tensor dweight = wants[1] ? weight_gradient(dy, x, weight_sink) : Tensor();
                  Tensor dbias = wants[2] ? bias_gradient(dy, bias_sink) : Tensor();
                  return {std::move(dx), std::move(dweight), std::move(dbias)};
                });
}

}  // namespace megatron
