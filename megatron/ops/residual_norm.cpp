#include "megatron/ops/residual_norm.h"

#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/residual_norm.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/optional_view.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/ops/workspace.h"

namespace megatron {
namespace {

Tensor data_of(const Variable& x) { return x.defined() ? x.data() : Tensor(); }
GradSink sink_of(const Variable& x) { return x.defined() ? x.grad_sink() : GradSink(); }

kernels::NormParameters parameters(const Tensor& weight, const Tensor& bias,
                                   const NormOptions& options) {
  return {weight.view(), view_or_none(bias), options.one_plus_weight ? 1.0f : 0.0f,
          options.epsilon};
}

// The sum with a branch [s, b, h], not in parts.
ResidualSum with_whole_branch(const ResidualSum& sum) {
  const Shape& shape = sum.residual.shape();
  if (sum.branch.shape().rank() == shape.rank()) return sum;
  const Tensor parts = sum.branch.data();
  Tensor branch(shape, sum.residual.dtype(), parts.stream());
  kernels::sum_rows(branch.reshape({branch.numel()}).view(),
                    parts.reshape({parts.size(0), branch.numel()}).view(), 0.0f, parts.stream());
  return {Variable(branch), sum.bias, sum.residual, sum.key};
}

NormedStream recorded_residual_norm(const ResidualSum& sum, const Variable& weight,
                                    const Variable& norm_bias, const NormOptions& options) {
  const TraceRange range("residual_norm", sum.residual.stream());
  const Stream stream = sum.residual.stream();
  const Tensor w = weight.data();
  const Tensor b = data_of(norm_bias);
  const Tensor bias = data_of(sum.bias);
  const int64_t rows = sum.residual.data().rows().size(0);
  Tensor x = empty_like(sum.residual.data());
  Tensor y(x.shape(), w.dtype(), stream);
  Tensor mean = b.defined() ? Tensor({rows}, DType::kFloat32, stream) : Tensor();
  Tensor rstd({rows}, DType::kFloat32, stream);
  kernels::residual_norm_forward(
      x.view(), y.view(), view_or_none(mean), rstd.view(), sum.branch.data().view(),
      view_or_none(bias), sum.residual.data().view(), parameters(w, b, options), sum.key, stream);

  const std::vector<Variable> outputs = record_outputs(
      "residual_norm", {x, y}, {sum.branch, sum.bias, sum.residual, weight, norm_bias},
      [x, w, b, mean, rstd, options, key = sum.key, branch_dtype = sum.branch.dtype(),
       bias_dtype = bias.defined() ? bias.dtype() : w.dtype(), bias_sink = sink_of(sum.bias),
       weight_sink = weight.grad_sink(), norm_bias_sink = sink_of(norm_bias)](
          const std::vector<Tensor>& dys, const Wants& wants) -> Grads {
        const Stream s = x.stream();
        const Shape h = w.shape();
        const Tensor dy = dys[1].defined() ? dys[1] : zeros(x.shape(), w.dtype(), s);
        Tensor dx = empty_like(x);
        const bool is_changed = key.is_active() || branch_dtype != x.dtype();
        Tensor dbranch = is_changed ? Tensor(x.shape(), branch_dtype, s) : Tensor();
        // Both gradients share one beta, so both go to main gradients or neither does.
        const bool sinks = weight_sink && (!b.defined() || norm_bias_sink);
        ParameterGradient dweight(sinks ? weight_sink : GradSink(), h, w.dtype(), s, wants[3]);
        ParameterGradient dnorm_bias(sinks ? norm_bias_sink : GradSink(), h, w.dtype(), s,
                                     wants[4]);
        ParameterGradient dbias(bias_sink, h, bias_dtype, s, wants[1]);
        Workspace workspace(kernels::residual_norm_backward_workspace_bytes(x.shape(), s), s);
        kernels::residual_norm_backward({.dx = dx.view(),
                                         .dbranch = view_or_none(dbranch),
                                         .dbias = dbias.view(),
                                         .dweight = dweight.view(),
                                         .dnorm_bias = dnorm_bias.view(),
                                         .bias_beta = dbias.beta(),
                                         .norm_beta = sinks ? 1.0f : 0.0f},
                                        view_or_none(dys[0]), dy.view(), x.view(),
                                        view_or_none(mean), rstd.view(), parameters(w, b, options),
                                        key, workspace.view(), s);
        return {is_changed ? dbranch : dx, dbias.result(), dx, dweight.result(),
                dnorm_bias.result()};
      });
  return {outputs[0], outputs[1]};
}

}  // namespace

Variable computed(const ResidualSum& sum) {
  if (!sum.branch.defined()) return sum.residual;
  const ResidualSum whole = with_whole_branch(sum);
  return bias_dropout_add(whole.branch, whole.bias, whole.residual, whole.key);
}

NormedStream residual_norm(const ResidualSum& sum, const Variable& weight,
                           const Variable& norm_bias, const NormOptions& options) {
  const Variable& x = sum.residual;
  if (sum.branch.defined()) {
    const bool adds_parts =
        kernels::residual_norm_adds_parts(x.shape(), sum.branch.size(0), x.stream());
    return recorded_residual_norm(adds_parts ? sum : with_whole_branch(sum), weight, norm_bias,
                                  options);
  }
  return {x, norm_bias.defined() ? layer_norm(x, weight, norm_bias, options)
                                 : rms_norm(x, weight, options)};
}

}  // namespace megatron
