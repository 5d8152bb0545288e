#include "megatron/ops/linear.h"

#include <utility>

#include "megatron/autograd/delayed_gradients.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"

namespace megatron {
namespace {

using kernels::Transpose;

constexpr ConstView kNoBias{};

}  // namespace

LinearSaved linear_saved(const Variable& weight, const Variable& bias) {
  return {weight.data(), weight.grad_sink(), bias.defined() ? bias.grad_sink() : GradSink()};
}

Tensor linear_forward(const Tensor& x, const Variable& weight, const Variable& bias) {
  Tensor y(x.shape().with(-1, weight.size(0)), x.dtype(), x.stream());
  linear_forward_into(y, x, weight, bias);
  return y;
}

Tensor linear_split_k(const Tensor& x, const Variable& weight) {
  const ConstView a = x.rows();
  const int64_t out = weight.size(0);
  const int64_t parts = kernels::num_k_splits(a.size(0), out, a.size(1), x.dtype(), x.stream());
  if (parts == 1) return linear_forward(x, weight, Variable());
  Tensor y({parts, a.size(0), out}, DType::kFloat32, x.stream());
  kernels::matmul_split_k(y.view(), a, weight.data().view(), x.stream());
  return y.reshape({parts, x.size(0), x.size(1), out});
}

void linear_forward_into(Tensor& y, const Tensor& x, const Variable& weight, const Variable& bias) {
  const int64_t out = weight.size(0);
  expect_shape(weight.shape(), {out, x.size(-1)}, "linear: weight");
  expect_dtype(weight.dtype(), x.dtype(), "linear: weight");
  if (bias.defined()) expect_shape(bias.shape(), {out}, "linear: bias");

  kernels::matmul(y.rows(), x.rows(), Transpose::kNo, weight.data().view(), Transpose::kYes,
                  bias.defined() ? bias.data().view() : kNoBias, 0.0f, x.stream());
}

Tensor linear_input_gradient(const Tensor& dy, const LinearSaved& saved) {
  Tensor dx(dy.shape().with(-1, saved.weight.size(1)), dy.dtype(), dy.stream());
  linear_input_gradient_into(dx, dy, saved);
  return dx;
}

void linear_input_gradient_into(Tensor& dx, const Tensor& dy, const LinearSaved& saved) {
  kernels::matmul(dx.rows(), dy.rows(), Transpose::kNo, saved.weight.view(), Transpose::kNo,
                  kNoBias, 0.0f, dx.stream());
}

Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x, const LinearSaved& saved) {
  return DelayedGradients::now_or_later(saved.weight_sink, [dy, x, saved] {
    WeightGradient gradient(saved, true);
    gradient.add(dy, x);
    return gradient.result();
  });
}

WeightGradient::WeightGradient(const LinearSaved& saved, bool wanted)
    : gradient_(saved.weight_sink, saved.weight.shape(), saved.weight.dtype(),
                saved.weight.stream(), wanted),
      beta_(gradient_.beta()) {}

void WeightGradient::add(const Tensor& dy, const Tensor& x) {
  const TensorView dweight = gradient_.view();
  if (dweight.is_null()) return;
  kernels::matmul(dweight, dy.rows(), Transpose::kYes, x.rows(), Transpose::kNo, kNoBias, beta_,
                  x.stream());
  beta_ = 1.0f;
}

Tensor linear_bias_gradient(const Tensor& dy, const LinearSaved& saved) {
  const GradSink& sink = saved.bias_sink;
  Tensor dbias = sink ? sink.main_grad() : Tensor({dy.size(-1)}, dy.dtype(), dy.stream());
  kernels::sum_rows(dbias.view(), dy.rows(), sink ? 1.0f : 0.0f, dy.stream());
  return sink ? Tensor() : dbias;
}

Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  const TraceRange range("linear", x.stream());
  return record("linear", linear_forward(x.data(), weight, bias), {x, weight, bias},
                [x = x.data(), saved = linear_saved(weight, bias)](const Tensor& dy,
                                                                   const Wants& wants) -> Grads {
                  Tensor dx = wants[0] ? linear_input_gradient(dy, saved) : Tensor();
                  Tensor dweight = wants[1] ? linear_weight_gradient(dy, x, saved) : Tensor();
                  Tensor dbias = wants[2] ? linear_bias_gradient(dy, saved) : Tensor();
                  return {std::move(dx), std::move(dweight), std::move(dbias)};
                });
}

}  // namespace megatron
