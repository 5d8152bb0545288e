#include "megatron/ops/norm.h"

#include "megatron/device/trace.h"
#include "megatron/kernels/norm.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/ops/workspace.h"

namespace megatron {
namespace {

float weight_offset(const NormOptions& options) { return options.one_plus_weight ? 1.0f : 0.0f; }

Workspace workspace_of(const Tensor& x) {
  return Workspace(kernels::norm_backward_workspace_bytes(x.rows().shape, x.stream()), x.stream());
}

}  // namespace

Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    NormOptions options) {
  const TraceRange range("layer_norm", x.stream());
  expect_shape(weight.shape(), {x.size(-1)}, "layer_norm: weight");
  expect_shape(bias.shape(), {x.size(-1)}, "layer_norm: bias");

  const Tensor& in = x.data();
  const Stream stream = x.stream();
  Tensor y(x.shape(), weight.dtype(), stream);
  Tensor mean({in.rows().size(0)}, DType::kFloat32, stream);
  Tensor rstd({in.rows().size(0)}, DType::kFloat32, stream);
  kernels::layer_norm_forward(y.rows(), mean.view(), rstd.view(), in.rows(), weight.data().view(),
                              bias.data().view(), weight_offset(options), options.epsilon, stream);

  return record(
      "layer_norm", y, {x, weight, bias},
      [x = in, weight = weight.data(), mean, rstd, weight_sink = weight.grad_sink(),
       bias_sink = bias.grad_sink(), options](const Tensor& dy, const Wants& wants) -> Grads {
        const Stream s = dy.stream();
        // Both gradients share one beta, so both go to main gradients or neither does.
        const bool sinks = weight_sink && bias_sink;
        ParameterGradient dweight(sinks ? weight_sink : GradSink(), weight.shape(), weight.dtype(),
                                  s, wants[1]);
        ParameterGradient dbias(sinks ? bias_sink : GradSink(), weight.shape(), weight.dtype(), s,
                                wants[2]);
        Tensor dx = wants[0] ? empty_like(x) : Tensor();
        Workspace workspace = workspace_of(x);
        kernels::layer_norm_backward(wants[0] ? dx.rows() : TensorView{}, dweight.view(),
                                     dbias.view(), dy.rows(), x.rows(), mean.view(), rstd.view(),
                                     weight.view(), weight_offset(options), sinks ? 1.0f : 0.0f,
                                     workspace.view(), s);
        return {dx, dweight.result(), dbias.result()};
      });
}

Variable rms_norm(const Variable& x, const Variable& weight, NormOptions options) {
  const TraceRange range("rms_norm", x.stream());
  expect_shape(weight.shape(), {x.size(-1)}, "rms_norm: weight");

  const Tensor& in = x.data();
  const Stream stream = x.stream();
  Tensor y(x.shape(), weight.dtype(), stream);
  Tensor rstd({in.rows().size(0)}, DType::kFloat32, stream);
  kernels::rms_norm_forward(y.rows(), rstd.view(), in.rows(), weight.data().view(),
                            weight_offset(options), options.epsilon, stream);

  return record(
      "rms_norm", y, {x, weight},
      [x = in, weight = weight.data(), rstd, weight_sink = weight.grad_sink(), options](
          const Tensor& dy, const Wants& wants) -> Grads {
        const Stream s = dy.stream();
        ParameterGradient dweight(weight_sink, weight.shape(), weight.dtype(), s, wants[1]);
        Tensor dx = wants[0] ? empty_like(x) : Tensor();
        Workspace workspace = workspace_of(x);
        kernels::rms_norm_backward(wants[0] ? dx.rows() : TensorView{}, dweight.view(), dy.rows(),
                                   x.rows(), rstd.view(), weight.view(), weight_offset(options),
                                   dweight.beta(), workspace.view(), s);
        return {dx, dweight.result()};
      });
}

}  // namespace megatron
