#include "megatron/parallel/tensor/fp8_linear.h"

#include <utility>

#include "megatron/autograd/delayed_gradients.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/fp8_transpose.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/input_gradient.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// The saved tensors of a layer for its backward pass.
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

// A tensor that sequence parallelism divides among ranks, whole and in FP8.
struct Whole {
  Fp8Matrix matrix;
  Shape shape;       // [s, b, ..]
  Tensor wide = {};  // undefined if it was gathered in FP8
};

// A product in FP8 has a multiple of 16 rows, and so has a part that is rounded.
bool gathers_in_fp8(const Fp8Layer& fp8, const Tensor& part, const TensorParallel& tp) {
  return tp.sequence_parallel && tp.size() > 1 && fp8.gathers_in_fp8() &&
         part.rows().size(0) % 16 == 0;
}

// Gathers [s/tp, b, ..] with sequence parallelism. All ranks round with the scale of all rows, so
// the result equals rounding after the gather, at one byte per element.
Whole whole(const Fp8Layer& fp8, Fp8Tensor which, const Tensor& part, const Fp8Parts& parts,
            const TensorParallel& tp) {
  if (!gathers_in_fp8(fp8, part, tp)) {
    const Tensor wide = whole_rows(part, tp);
    return {fp8.quantized(which, {.x = wide.rows()}, parts), wide.shape(), wide};
  }
  Fp8Matrix x = fp8.quantized(which, {.x = part.rows()}, {.columns = false, .ranks = &tp.group});
  x.rows = gathered_sequence(x.rows, tp.group);
  x.shape = x.rows.shape();
  if (parts.columns) {
    x.columns = Tensor({x.shape[1], x.shape[0]}, x.rows.dtype(), x.rows.stream());
    kernels::fp8_transpose(x.columns.view(), std::as_const(x.rows).view(), x.rows.stream());
  }
  return {std::move(x), part.shape().with(0, part.size(0) * tp.size())};
}

// True if the backward pass needs a layer's input.
bool keeps_input(const Fp8Linear& layer) { return grad_enabled() && layer.weight.requires_grad(); }

// The parts of its input that a layer needs, if it keeps some for the backward pass.
Fp8Parts parts_of_input(const Fp8Linear& layer, bool keeps) {
  return {.columns = keeps && layer.fp8.has_fp8_wgrad()};
}

struct Forward {
  Tensor y;  // x weight^T + bias, [.., out], of this rank
  Saved saved;
};

// For x of shape [.., in]; wide_x is x if it exists as a tensor. Saves the transpose of x if x has
// it, otherwise wide_x if the layer needs it.
Forward forward(Fp8Matrix x, const Shape& shape, const Tensor& wide_x, const Fp8Linear& layer) {
  const bool keeps_wide = keeps_input(layer) && !layer.fp8.has_fp8_wgrad();
  Forward result{
      Tensor(shape.with(-1, layer.weight.size(0)), layer.weight.dtype(), layer.weight.stream()),
      {&layer.fp8, linear_saved(layer.weight, layer.bias), std::move(x),
       keeps_wide ? wide_x : Tensor()}};
  Fp8Matrix& matrix = result.saved.x;
  kernels::fp8_matmul(result.y.rows(), matrix.by_rows(), layer.fp8.weight().by_rows(),
                      layer.bias.defined() ? layer.bias.data().view() : ConstView{}, 0,
                      result.y.stream());
  matrix.drop_rows();
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

// The same of a row-parallel layer, whose gradient sequence parallelism divides.
Whole whole_gradient(const Tensor& part, const Saved& saved, const LayerWants& wants,
                     const TensorParallel& tp) {
  return whole(*saved.fp8, Fp8Tensor::kGradient, part,
               {.rows = wants.x, .columns = wants.weight && saved.fp8->has_fp8_wgrad()}, tp);
}

// dy weight, [.., in], for dy of shape [.., out].
Tensor input_gradient(const Fp8Matrix& dy, const Shape& shape, const Saved& saved) {
  const Tensor& weight = saved.linear.weight;
  Tensor dx(shape.with(-1, weight.size(1)), weight.dtype(), weight.stream());
  kernels::fp8_matmul(dx.rows(), dy.by_rows(), saved.fp8->weight_with_columns().by_columns(), {}, 0,
                      dx.stream());
  return dx;
}

// dy^T x; undefined if it was added to a main gradient.
Tensor weight_gradient(const Fp8Matrix& dy, const Tensor& wide_dy, const Saved& saved) {
  if (saved.wide_x.defined()) return linear_weight_gradient(wide_dy, saved.wide_x, saved.linear);
  Fp8Matrix columns = dy;
  columns.drop_rows();
  return DelayedGradients::now_or_later(
      saved.linear.weight_sink, [dy = std::move(columns), x = saved.x, linear = saved.linear] {
        const Tensor& weight = linear.weight;
        ParameterGradient gradient(linear.weight_sink, weight.shape(), weight.dtype(),
                                   weight.stream(), true);
        kernels::fp8_matmul(gradient.view(), dy.by_columns(), x.by_columns(), {}, gradient.beta(),
                            weight.stream());
        return gradient.result();
      });
}

}  // namespace

Variable fp8_column_parallel_linear(const Variable& x, const Fp8Linear& layer,
                                    const TensorParallel& tp) {
  const TraceRange range("fp8_column_parallel_linear", x.stream());
  Whole in =
      whole(layer.fp8, Fp8Tensor::kInput, x.data(), parts_of_input(layer, keeps_input(layer)), tp);
  Forward made = forward(std::move(in.matrix), in.shape, in.wide, layer);
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
  Forward made = forward(layer.fp8.quantized(Fp8Tensor::kInput, {.x = x.data().rows()},
                                             parts_of_input(layer, keeps_input(layer))),
                         x.shape(), x.data(), layer);
  return record(
      "fp8_row_parallel_linear", summed_over_ranks(std::move(made.y), tp), {x, layer.weight},
      [saved = std::move(made.saved), tp](const Tensor& part, const Wants& wants) -> Grads {
        const Whole dy = whole_gradient(part, saved, {wants[0], wants[1]}, tp);
        Tensor dx = wants[0] ? input_gradient(dy.matrix, dy.shape, saved) : Tensor();
        Tensor dweight = wants[1] ? weight_gradient(dy.matrix, dy.wide, saved) : Tensor();
        return {std::move(dx), std::move(dweight)};
      });
}

Variable fp8_mlp(const Variable& x, const Fp8Linear& layer1, Activation activation,
                 const Fp8Linear& layer2, const TensorParallel& tp) {
  const TraceRange range("fp8_mlp", x.stream());
  Forward fc1 = [&] {
    Whole in = whole(layer1.fp8, Fp8Tensor::kInput, x.data(),
                     parts_of_input(layer1, keeps_input(layer1)), tp);
    return forward(std::move(in.matrix), in.shape, Tensor(), layer1);
  }();
  Tensor pre = std::move(fc1.y);  // [s, b, f/tp or 2f/tp]
  start_other();                  // as RowParallelLinear
  Forward fc2 =
      forward(layer2.fp8.quantized(Fp8Tensor::kInput,
                                   {.x = std::as_const(pre).rows(), .activation = activation},
                                   parts_of_input(layer2, false)),
              pre.shape(), Tensor(), layer2);

  return record(
      "fp8_mlp", summed_over_ranks(std::move(fc2.y), tp),
      {x, layer1.weight, layer1.bias, layer2.weight},
      [saved1 = std::move(fc1.saved), pre = std::move(pre), saved2 = std::move(fc2.saved),
       activation, tp](const Tensor& part, const Wants& wants) mutable -> Grads {
        Whole dz = whole_gradient(part, saved2, {true, wants[3]}, tp);
        dz.wide = Tensor();
        Tensor dy = input_gradient(dz.matrix, dz.shape, saved2);  // of the activation's value
        dz.matrix.drop_rows();
        // The activation's value comes back beside its derivative, for the gradient of weight2.
        const OutputGradient d = quantized_gradient({.x = std::as_const(pre).rows(),
                                                     .activation = activation,
                                                     .dy = std::as_const(dy).rows()},
                                                    saved1, {wants[0], wants[1], wants[2]},
                                                    wants[3] ? &saved2.x : nullptr);
        const Shape shape = pre.shape();
        pre = Tensor();
        dy = Tensor();
        Tensor dweight2 = wants[3] ? weight_gradient(dz.matrix, Tensor(), saved2) : Tensor();
        saved2.x = Fp8Matrix();
        dz.matrix = Fp8Matrix();
        InputGradient dx(wants[0] ? input_gradient(d.matrix, shape, saved1) : Tensor(), tp);
        Tensor dweight1 = wants[1] ? weight_gradient(d.matrix, Tensor(), saved1) : Tensor();
        return {dx.finish(), std::move(dweight1), d.dbias, std::move(dweight2)};
      });
}

}  // namespace megatron
