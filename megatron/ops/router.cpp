#include "megatron/ops/router.h"

#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/double_matmul.h"
#include "megatron/ops/linear.h"

namespace megatron {

using kernels::Transpose;

Variable double_logits(const Variable& x, const Variable& weight, const Variable& bias) {
  const TraceRange range("double_logits", x.stream());
  Tensor y({x.size(0), weight.size(0)}, DType::kFloat64, x.stream());
  kernels::double_matmul(y.view(), x.data().view(), Transpose::kNo, weight.data().view(),
                         Transpose::kYes, bias.defined() ? bias.data().view() : ConstView{}, 0.0f,
                         y.stream());
  return record(
      "double_logits", y, {x, weight, bias},
      [x = x.data(), saved = linear_saved(weight, bias)](const Tensor& dy,
                                                         const Wants& wants) -> Grads {
        const Stream stream = dy.stream();
        const auto product = [&](const TensorView& c, const ConstView& a, Transpose transpose_a,
                                 const ConstView& b, float beta) {
          kernels::double_matmul(c, a, transpose_a, b, Transpose::kNo, {}, beta, stream);
        };
        Tensor dx;
        if (wants[0]) {
          dx = empty_like(x);
          product(dx.view(), dy.view(), Transpose::kNo, saved.weight.view(), 0.0f);
        }
        ParameterGradient dweight(saved.weight_sink, saved.weight.shape(), saved.weight.dtype(),
                                  stream, wants[1]);
        if (wants[1]) {
          product(dweight.view(), dy.view(), Transpose::kYes, x.view(), dweight.beta());
        }
        ParameterGradient dbias(saved.bias_sink, {1, dy.size(1)}, x.dtype(), stream, wants[2]);
        if (wants[2]) {
          const Tensor ones = full({dy.size(0), 1}, 1.0f, DType::kFloat32, stream);
          TensorView sums = dbias.view();
          sums.shape = {1, dy.size(1)};
          product(sums, ones.view(), Transpose::kYes, dy.view(), dbias.beta());
        }
        Tensor of_bias = dbias.result();
        if (of_bias.defined()) of_bias = of_bias.reshape({dy.size(1)});
        return {std::move(dx), dweight.result(), std::move(of_bias)};
      });
}

Variable expert_weights(const Variable& logits, const Tensor& ids, const RouterOptions& options) {
  const TraceRange range("expert_weights", logits.stream());
  Tensor weights(ids.shape(), DType::kFloat32, logits.stream());
  kernels::expert_weights_forward(weights.view(), logits.data().view(), ids.view(), options,
                                  weights.stream());
  return record("expert_weights", weights, {logits},
                [logits = logits.data(), ids, options](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dlogits = empty_like(logits);
                  kernels::expert_weights_backward(dlogits.view(), dy.view(), logits.view(),
                                                   ids.view(), options, dy.stream());
                  return {dlogits};
                });
}

Variable balancing_loss(const Variable& logits, const Tensor& counts, RouterScore score,
                        double factor) {
  const TraceRange range("balancing_loss", logits.stream());
  const Stream stream = logits.stream();
  const auto alpha = static_cast<float>(factor);
  Tensor scores = empty_like(logits.data());
  kernels::router_scores_forward(scores.view(), logits.data().view(), score, stream);
  Tensor sums = empty_like(counts);
  kernels::sum_by_group(sums.view(), scores.view(), stream);
  Tensor loss({}, DType::kFloat32, stream);
  kernels::sum_of_products(loss.view(), sums.view(), counts.view(), alpha, stream);
  return record(
      "balancing_loss", loss, {logits},
      [logits = logits.data(), counts, score, alpha](const Tensor& dy, const Wants&) -> Grads {
        Tensor dlogits = empty_like(logits);
        kernels::router_scores_backward(dlogits.view(), dy.view(), counts.view(), logits.view(),
                                        score, alpha, dy.stream());
        return {dlogits};
      });
}

Variable squared_log_sum_loss(const Variable& logits, double factor) {
  const auto alpha = static_cast<float>(factor);
  Tensor loss({}, DType::kFloat32, logits.stream());
  kernels::squared_log_sums_forward(loss.view(), logits.data().view(), alpha, loss.stream());
  return record("squared_log_sum_loss", loss, {logits},
                [logits = logits.data(), alpha](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dlogits = empty_like(logits);
                  kernels::squared_log_sums_backward(dlogits.view(), dy.view(), logits.view(),
                                                     alpha, dy.stream());
                  return {dlogits};
                });
}

Variable jittered(const Variable& x, const Tensor& noise) {
  const auto times_noise = [noise](const Tensor& in) {
    Tensor y = cast(in, DType::kFloat32);
    kernels::jitter(y.view(), y.view(), noise.view(), y.stream());
    return in.dtype() == DType::kFloat32 ? y : cast(y, in.dtype());
  };
  return record(
      "jittered", times_noise(x.data()), {x},
      [times_noise](const Tensor& dy, const Wants&) -> Grads { return {times_noise(dy)}; });
}

}  // namespace megatron
