#include "megatron/parallel/tensor/fp8_linear.h"

#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/input_gradient.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// What the backward pass needs of a layer and its input.
struct Saved {
  const Fp8Layer* fp8;
  LinearSaved linear;
  Fp8Matrix x;    // its transpose
  Tensor wide_x;  // without FP8 for gradients of weights: x instead
};

Tensor whole_rows(const Tensor& x, const TensorParallel& tp) {
  return tp.sequence_parallel && tp.size() > 1 ? gathered_sequence(x, tp.group) : x;
}

Tensor summed_over_ranks(Tensor y, const TensorParallel& tp) {
  if (tp.size() == 1) return y;
  if (tp.sequence_parallel) return scattered_sum(y, tp.group);
  comm::all_reduce(y.view(), comm::Reduce::kSum, tp.group, y.stream());
  return y;
}

struct Forward {
  Tensor y;  // x weight^T + bias, [.., out], of this rank
  Saved saved;
};

// For x of shape [.., in]; wide_x is x if it exists as a tensor. keeps_x: saves the transpose of x,
// or x itself, unless the weight is a constant.
Forward forward(const kernels::Fp8Source& x, const Shape& shape, const Tensor& wide_x,
                const Fp8Linear& layer, bool keeps_x = true) {
  const bool has_fp8_wgrad = layer.fp8.has_fp8_wgrad();
  keeps_x = keeps_x && grad_enabled() && layer.weight.requires_grad();
  Forward result{
      Tensor(shape.with(-1, layer.weight.size(0)), layer.weight.dtype(), layer.weight.stream()),
      {&layer.fp8, linear_saved(layer.weight, layer.bias),
       layer.fp8.quantized(Fp8Tensor::kInput, x, {.columns = keeps_x && has_fp8_wgrad}),
       keeps_x && !has_fp8_wgrad ? wide_x : Tensor()}};
  Fp8Matrix& quantized = result.saved.x;
  kernels::fp8_matmul(result.y.rows(), quantized.by_rows(), layer.fp8.weight().by_rows(),
                      layer.bias.defined() ? layer.bias.data().view() : ConstView{}, 0,
                      result.y.stream());
  quantized.drop_rows();
  return result;
}

// The inputs of a layer that need a gradient.
struct LayerWants {
  bool x = true;
  bool weight = true;
  bool bias = false;
};

// The gradient of a layer's output.
struct OutputGradient {
  Fp8Matrix matrix;
  Tensor dbias;  // the sum of its rows; undefined if not wanted or added to a main gradient
};

// `value`: as Fp8Parts::value.
OutputGradient quantized_gradient(const kernels::Fp8Source& dy, const Saved& saved,
                                  const LayerWants& wants, Fp8Matrix* value = nullptr) {
  const Stream stream = saved.linear.weight.stream();
  const int64_t num_sums = (dy.rows() + kernels::kFp8SumRows - 1) / kernels::kFp8SumRows;
  const Tensor sums =
      wants.bias ? Tensor({num_sums, dy.cols()}, DType::kFloat32, stream) : Tensor();
  OutputGradient d;
  d.matrix = saved.fp8->quantized(Fp8Tensor::kGradient, dy,
                                  {.rows = wants.x,
                                   .columns = wants.weight && saved.fp8->has_fp8_wgrad(),
                                   .sums = sums,
                                   .value = value});
  if (!wants.bias) return d;
  ParameterGradient gradient(saved.linear.bias_sink, {dy.cols()}, saved.linear.weight.dtype(),
                             stream, true);
  kernels::sum_rows(gradient.view(), sums.view(), gradient.beta(), stream);
  d.dbias = gradient.result();
  return d;
}

// dy weight, [.., in], for dy of shape [.., out].
Tensor input_gradient(const Fp8Matrix& dy, const Shape& shape, const Saved& saved) {
  const Tensor& weight = saved.linear.weight;
  Tensor dx(shape.with(-1, weight.size(1)), weight.dtype(), weight.stream());
  kernels::fp8_matmul(dx.rows(), dy.by_rows(), saved.fp8->weight().by_columns(), {}, 0,
                      dx.stream());
  return dx;
}

// dy^T x; undefined if it was added to a main gradient.
Tensor weight_gradient(const Fp8Matrix& dy, const Tensor& wide_dy, const Saved& saved) {
  if (saved.wide_x.defined()) return linear_weight_gradient(wide_dy, saved.wide_x, saved.linear);
  const Tensor& weight = saved.linear.weight;
  ParameterGradient gradient(saved.linear.weight_sink, weight.shape(), weight.dtype(),
                             weight.stream(), true);
  kernels::fp8_matmul(gradient.view(), dy.by_columns(), saved.x.by_columns(), {}, gradient.beta(),
                      weight.stream());
  return gradient.result();
}

}  // namespace

Variable fp8_column_parallel_linear(const Variable& x, const Fp8Linear& layer,
                                    const TensorParallel& tp) {
  const TraceRange range("fp8_column_parallel_linear", x.stream());
  const Tensor whole = whole_rows(x.data(), tp);
  Forward made = forward({.x = whole.rows()}, whole.shape(), whole, layer);
  return record("fp8_column_parallel_linear", std::move(made.y), {x, layer.weight, layer.bias},
                [saved = std::move(made.saved), tp](const Tensor& dy, const Wants& wants) -> Grads {
                  const OutputGradient d =
                      quantized_gradient({.x = dy.rows()}, saved, {wants[0], wants[1], wants[2]});
                  InputGradient dx(
                      wants[0] ? input_gradient(d.matrix, dy.shape(), saved) : Tensor(), tp);
                  Tensor dweight = wants[1] ? weight_gradient(d.matrix, dy, saved) : Tensor();
                  return {dx.finish(), std::move(dweight), d.dbias};
                });
}

Variable fp8_row_parallel_linear(const Variable& x, const Fp8Linear& layer,
                                 const TensorParallel& tp) {
  const TraceRange range("fp8_row_parallel_linear", x.stream());
  Forward made = forward({.x = x.data().rows()}, x.shape(), x.data(), layer);
  return record(
      "fp8_row_parallel_linear", summed_over_ranks(std::move(made.y), tp), {x, layer.weight},
      [saved = std::move(made.saved), tp](const Tensor& part, const Wants& wants) -> Grads {
        const Tensor dy = whole_rows(part, tp);
        const OutputGradient d =
            quantized_gradient({.x = dy.rows()}, saved, {wants[0], wants[1], false});
        Tensor dx = wants[0] ? input_gradient(d.matrix, dy.shape(), saved) : Tensor();
        Tensor dweight = wants[1] ? weight_gradient(d.matrix, dy, saved) : Tensor();
        return {std::move(dx), std::move(dweight)};
      });
}

Variable fp8_mlp(const Variable& x, const Fp8Linear& layer1, Activation activation,
                 const Fp8Linear& layer2, const TensorParallel& tp) {
  const TraceRange range("fp8_mlp", x.stream());
  const Tensor whole = whole_rows(x.data(), tp);
  Forward fc1 = forward({.x = whole.rows()}, whole.shape(), Tensor(), layer1);
  Tensor pre = std::move(fc1.y);  // [s, b, f/tp or 2f/tp]
  Forward fc2 = forward({.x = std::as_const(pre).rows(), .activation = activation}, pre.shape(),
                        Tensor(), layer2, false);

  return record(
      "fp8_mlp", summed_over_ranks(std::move(fc2.y), tp),
      {x, layer1.weight, layer1.bias, layer2.weight},
      [saved1 = std::move(fc1.saved), pre = std::move(pre), saved2 = std::move(fc2.saved),
       activation, tp](const Tensor& part, const Wants& wants) mutable -> Grads {
        OutputGradient d2;
        Tensor dy;  // of the activation's value, [s, b, f/tp]
        {
          const Tensor dz = whole_rows(part, tp);
          d2 = quantized_gradient({.x = dz.rows()}, saved2, {true, wants[3], false});
          dy = input_gradient(d2.matrix, dz.shape(), saved2);
          d2.matrix.drop_rows();
        }
        // The activation's value comes back beside its derivative, for the gradient of weight2.
        const OutputGradient d = quantized_gradient({.x = std::as_const(pre).rows(),
                                                     .activation = activation,
                                                     .dy = std::as_const(dy).rows()},
                                                    saved1, {wants[0], wants[1], wants[2]},
                                                    wants[3] ? &saved2.x : nullptr);
        const Shape shape = pre.shape();
        pre = Tensor();
        dy = Tensor();
        Tensor dweight2 = wants[3] ? weight_gradient(d2.matrix, Tensor(), saved2) : Tensor();
        saved2.x = Fp8Matrix();
        d2.matrix = Fp8Matrix();
        InputGradient dx(wants[0] ? input_gradient(d.matrix, shape, saved1) : Tensor(), tp);
        Tensor dweight1 = wants[1] ? weight_gradient(d.matrix, Tensor(), saved1) : Tensor();
        return {dx.finish(), std::move(dweight1), d.dbias, std::move(dweight2)};
      });
}

}  // namespace megatron
