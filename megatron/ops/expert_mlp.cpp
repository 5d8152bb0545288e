#include "megatron/ops/expert_mlp.h"

#include <span>
#include <utility>
#include <vector>

#include "megatron/device/trace.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/expert_forward.h"
#include "megatron/kernels/expert_rows.h"
#include "megatron/kernels/fp8_grouped_matmul.h"
#include "megatron/kernels/fp8_rows.h"
#include "megatron/kernels/grouped_matmul.h"
#include "megatron/kernels/matmul.h"
#include "megatron/ops/optional_view.h"
#include "megatron/ops/parameter_gradient.h"
#include "megatron/ops/workspace.h"

namespace megatron {
namespace {

using kernels::Transpose;

// The rows of the experts of a rank (kernels/expert_rows.h).
struct ExpertRows {
  int64_t k = 0;   // choices of a token
  Tensor offsets;  // [E + 1] int32
  Tensor slots;    // [R] int32
  Tensor rows;     // [T, k] int32
  // Offsets that the host knows, for experts with biases; else empty.
  std::vector<int64_t> host_offsets;

  int64_t count() const { return slots.size(0); }
};

// Where every expert is on this rank, each choice has a row: the host need not know the counts.
// Ranks with some of the experts have as many rows as tokens came, which the host waits for; on a
// dry device, which knows no ids, as many as balanced experts have.
ExpertRows rows_of(const Tensor& ids, int64_t experts, bool has_biases,
                   const ExpertMlpOptions& options) {
  const Stream stream = ids.stream();
  const auto integers = [&](const Shape& shape) { return Tensor(shape, DType::kInt32, stream); };
  ExpertRows made{.k = ids.size(1),
                  .offsets = integers({experts + 1}),
                  .slots = integers({ids.numel()}),
                  .rows = integers(ids.shape()),
                  .host_offsets = {}};
  {
    Workspace workspace(kernels::expert_order_workspace_bytes(ids.numel(), experts, stream),
                        stream);
    kernels::order_by_expert(made.offsets.view(), made.slots.view(), made.rows.view(), ids.view(),
                             options.first_expert, workspace.view(), stream);
  }
  const bool has_all = experts == options.num_experts;
  if (has_all && !has_biases) return made;
  std::vector<int64_t> offsets;
  if (stream.is_dry()) {
    const int64_t rows = (ids.numel() * experts + options.num_experts - 1) / options.num_experts;
    for (int64_t e = 0; e <= experts; ++e) offsets.push_back(rows * e / experts);
  } else {
    const Tensor here = made.offsets.to(Stream{});
    offsets.assign(here.span<int32_t>().begin(), here.span<int32_t>().end());
  }
  if (!has_all) made.slots = made.slots.slice(0, offsets.back());
  if (has_biases) made.host_offsets = std::move(offsets);
  return made;
}

// The matrix or vector of an expert, as a matrix.
TensorView of_expert(TensorView all, int64_t expert) {
  if (all.is_null()) return all;
  const Shape shape =
      all.shape.rank() == 2 ? Shape{1, all.size(1)} : Shape{all.size(1), all.size(2)};
  return {static_cast<std::byte*>(all.data) + expert * shape.numel() * size_of(all.dtype), shape,
          all.dtype};
}
ConstView of_expert(ConstView all, int64_t expert) {
  const TensorView view =
      of_expert(TensorView{const_cast<void*>(all.data), all.shape, all.dtype}, expert);
  return view;
}
ConstView as_vector(ConstView row) {
  if (row.data != nullptr) row.shape = {row.shape.numel()};
  return row;
}
TensorView as_vector(TensorView row) {
  if (!row.is_null()) row.shape = {row.shape.numel()};
  return row;
}

// Calls f(expert, its rows) for each; `of` gives the rows of a tensor [R, ..].
template <class F>
void for_experts(const ExpertRows& rows, const F& f) {
  for (size_t e = 0; e + 1 < rows.host_offsets.size(); ++e) {
    const int64_t begin = rows.host_offsets[e];
    f(static_cast<int64_t>(e), [begin, count = rows.host_offsets[e + 1] - begin](const Tensor& x) {
      return x.slice(begin, count);
    });
  }
}

// y_e = x_e w_e^T, or x_e w_e.
void multiply_experts(Tensor& y, const Tensor& x, const Tensor& w, Transpose transpose,
                      const ExpertRows& rows) {
  const TraceRange range("grouped_matmul", y.stream());
  kernels::grouped_matmul(y.view(), x.view(), w.view(), transpose, rows.offsets.view(), y.stream());
}

// A matrix in FP8 with a scale for each row (kernels/fp8_rows.h).
struct Fp8Rows {
  Tensor numbers;  // [r, k]
  Tensor scales;   // [r]

  Fp8Rows() = default;
  Fp8Rows(int64_t rows, int64_t k, DType dtype, Stream stream)
      : numbers({rows, k}, dtype, stream), scales({rows}, DType::kFloat32, stream) {}
  Fp8Rows(const Tensor& x, DType dtype) : Fp8Rows(x.size(0), x.size(1), dtype, x.stream()) {}

  kernels::Fp8RowsView view() {
    if (!numbers.defined()) return {};
    return {numbers.view(), scales.view()};
  }
};

Fp8Rows quantized_rows(const Tensor& x, DType dtype) {
  const TraceRange range("fp8_quantize", x.stream());
  Fp8Rows y(x, dtype);
  kernels::fp8_quantize_rows(y.numbers.view(), y.scales.view(), x.view(), x.stream());
  return y;
}

// The rows of the experts of tokens in FP8: a row is rounded once, not once for each expert.
Fp8Rows gathered_tokens(const Fp8Rows& x, const ExpertRows& rows) {
  Fp8Rows y(rows.count(), x.numbers.size(1), x.numbers.dtype(), x.numbers.stream());
  kernels::gather_fp8_rows(y.numbers.view(), y.scales.view(), x.numbers.view(), x.scales.view(),
                           rows.slots.view(), rows.k, x.numbers.stream());
  return y;
}

// y_e = x_e w_e^T, or x_e w_e.
void multiply_experts(Tensor& y, const Fp8Rows& x, const Fp8Stack& w, Transpose transpose,
                      const ExpertRows& rows) {
  const TraceRange range("fp8_grouped_matmul", y.stream());
  const Tensor& numbers = transpose == Transpose::kYes ? w.rows : w.columns;
  kernels::fp8_grouped_matmul(y.view(), x.numbers.view(), x.scales.view(), numbers.view(),
                              w.scales.view(), rows.offsets.view(), y.stream());
}

// dw_e = dy_e^T x_e, added to a main gradient.
void add_expert_products(ParameterGradient& dw, const Tensor& dy, const Tensor& x,
                         const ExpertRows& rows) {
  TensorView all = dw.view();
  if (all.is_null()) return;
  const TraceRange range("grouped_matmul", x.stream());
  all.shape = {all.size(0), dy.size(1), x.size(1)};  // biases are matrices of one row
  kernels::grouped_matmul_gradient(all, dy.view(), x.view(), rows.offsets.view(), dw.beta(),
                                   x.stream());
}

Tensor gathered_tokens(const Tensor& x, const ExpertRows& rows) {
  Tensor y({rows.count(), x.size(1)}, x.dtype(), x.stream());
  kernels::gather_token_rows(y.view(), x.view(), rows.slots.view(), rows.k, y.stream());
  return y;
}

Tensor combined(const Tensor& x, const ExpertRows& rows) {
  Tensor y({rows.rows.size(0), x.size(1)}, x.dtype(), x.stream());
  kernels::combine_token_rows(y.view(), x.view(), rows.rows.view(), y.stream());
  return y;
}

void weigh(Tensor& y, const Tensor& x, const Tensor& weights, const ExpertRows& rows) {
  kernels::weigh_rows_forward(y.view(), x.view(), weights.view(), rows.slots.view(), y.stream());
}

Tensor data_of(const Variable& x) { return x.defined() ? x.data() : Tensor(); }
GradSink sink_of(const Variable& x) { return x.defined() ? x.grad_sink() : GradSink(); }

// y_e = x_e w_e^T, or x_e w_e.
Tensor product_of_experts(const Tensor& x, const Tensor& w, Transpose transpose,
                          const ExpertRows& rows) {
  Tensor y({x.size(0), w.size(transpose == Transpose::kYes ? 1 : 2)}, x.dtype(), x.stream());
  multiply_experts(y, x, w, transpose, rows);
  return y;
}

// The adapters of a matrix of each expert.
struct SavedAdapter {
  Tensor a, b;
  GradSink a_sink, b_sink;
  float scale = 1;

  explicit SavedAdapter(const ExpertAdapter& adapter)
      : a(data_of(adapter.a)),
        b(data_of(adapter.b)),
        a_sink(sink_of(adapter.a)),
        b_sink(sink_of(adapter.b)),
        scale(adapter.scale) {}

  // y += scale x a^T b^T
  void add_to(Tensor& y, const Tensor& x, const ExpertRows& rows) const {
    if (!a.defined()) return;
    add_inplace(y, product_of_experts(scaled_product(x, a, Transpose::kYes, rows), b,
                                      Transpose::kYes, rows));
  }
  // Adds to dx, and sets the gradients of a and b.
  void differentiate(Tensor& dx, Tensor& da, Tensor& db, const Tensor& dy, const Tensor& x,
                     bool wants_a, bool wants_b, const ExpertRows& rows) const {
    if (!a.defined()) return;
    const Tensor dnarrow = scaled_product(dy, b, Transpose::kNo, rows);
    ParameterGradient gradient_a(a_sink, a.shape(), a.dtype(), x.stream(), wants_a);
    add_expert_products(gradient_a, dnarrow, x, rows);
    da = gradient_a.result();
    ParameterGradient gradient_b(b_sink, b.shape(), b.dtype(), x.stream(), wants_b);
    add_expert_products(gradient_b, dy, scaled_product(x, a, Transpose::kYes, rows), rows);
    db = gradient_b.result();
    add_inplace(dx, product_of_experts(dnarrow, a, Transpose::kNo, rows));
  }

 private:
  Tensor scaled_product(const Tensor& x, const Tensor& w, Transpose transpose,
                        const ExpertRows& rows) const {
    Tensor y = product_of_experts(x, w, transpose, rows);
    scale_inplace(y, scale);
    return y;
  }
};

}  // namespace

struct ExpertPass::Saved {
  ExpertMlpOptions options;
  ExpertRows rows;
  Tensor x, weights, wide;
  Tensor fc1, fc1_bias, fc2, fc2_bias;
  GradSink fc1_sink, fc1_bias_sink, fc2_sink, fc2_bias_sink;
  SavedAdapter fc1_adapter, fc2_adapter;
  Fp8Stack fc1_fp8, fc2_fp8;

  int64_t inner() const { return fc2.size(2); }

  // True if one kernel activates and weighs.
  bool is_fused() const { return !fc1_bias.defined() && !options.weighs_input; }

  // act(fc1(x)), times the weights if they belong here, [R, f].
  Tensor activations() const {
    Tensor y({rows.count(), inner()}, x.dtype(), x.stream());
    if (is_fused()) {
      kernels::weighed_activation_forward(y.view(), wide.view(), weights.view(), rows.slots.view(),
                                          options.activation, y.stream());
      return y;
    }
    activate(y);
    if (!options.weighs_input) weigh(y, y, weights, rows);
    return y;
  }
  void activate(Tensor& y) const {
    if (!fc1_bias.defined()) {
      kernels::bias_activation_forward(y.view(), wide.view(), {}, options.activation, y.stream());
      return;
    }
    for_experts(rows, [&](int64_t e, const auto& of) {
      kernels::bias_activation_forward(of(y).view(), of(wide).view(),
                                       as_vector(of_expert(view_or_none(fc1_bias), e)),
                                       options.activation, y.stream());
    });
  }

  // The tokens as fc1 reads them, [R, h].
  Tensor inputs() const {
    Tensor y = gathered_tokens(x, rows);
    if (options.weighs_input) weigh(y, y, weights, rows);
    return y;
  }

  // The factors of fc2_bias, [R, 1].
  Tensor bias_factors() const {
    Tensor y = full({rows.count(), 1}, 1.0f, x.dtype(), x.stream());
    if (!options.weighs_input) weigh(y, y, weights, rows);
    return y;
  }

  // y_e = x_e w_e^T, or dx_e = dy_e w_e, in FP8 if the matrices are.
  void multiply(Tensor& y, const Tensor& in, const Tensor& w, const Fp8Stack& fp8,
                Transpose transpose) const {
    if (!fp8.rows.defined()) return multiply_experts(y, in, w, transpose, rows);
    multiply_experts(y, quantized_rows(in, fp8_dtype(transpose)), fp8, transpose, rows);
  }
  DType fp8_dtype(Transpose transpose) const {
    return transpose == Transpose::kYes ? DType::kFloat8E4M3 : options.fp8_gradients;
  }

  void multiply_fc1() {
    if (fc1_fp8.rows.defined() && !options.weighs_input && !fc1_adapter.a.defined()) {
      const Fp8Rows tokens = quantized_rows(x, DType::kFloat8E4M3);
      return multiply_experts(wide, gathered_tokens(tokens, rows), fc1_fp8, Transpose::kYes, rows);
    }
    const Tensor in = inputs();
    multiply(wide, in, fc1, fc1_fp8, Transpose::kYes);
    fc1_adapter.add_to(wide, in, rows);
  }

  // fc2's product of the activations.
  void multiply_fc2(Tensor& out) const {
    if (fc2_fp8.rows.defined() && is_fused() && !fc2_adapter.a.defined()) {
      Fp8Rows inside(rows.count(), inner(), DType::kFloat8E4M3, x.stream());
      kernels::weighed_activation_fp8(inside.view(), wide.view(), weights.view(), rows.slots.view(),
                                      options.activation, x.stream());
      return multiply_experts(out, inside, fc2_fp8, Transpose::kYes, rows);
    }
    const Tensor inside = activations();
    multiply(out, inside, fc2, fc2_fp8, Transpose::kYes);
    fc2_adapter.add_to(out, inside, rows);
  }

  Tensor forward() {
    const Stream stream = x.stream();
    wide = Tensor({rows.count(), fc1.size(1)}, x.dtype(), stream);
    multiply_fc1();
    Tensor out({rows.count(), fc2.size(1)}, x.dtype(), stream);
    multiply_fc2(out);
    if (fc2_bias.defined() && options.adds_fc2_bias) {
      const Tensor factors = bias_factors();
      for_experts(rows, [&](int64_t e, const auto& of) {
        kernels::matmul(of(out).view(), of(factors).view(), Transpose::kNo,
                        of_expert(ConstView(fc2_bias.view()), e), Transpose::kNo, {}, 1.0f, stream);
      });
    }
    return combined(out, rows);
  }

  // The gradient of fc2_bias, and its part of that of the weights.
  Tensor bias_gradient(Tensor& dweights, const Tensor& dout, bool wanted) const {
    ParameterGradient dbias(fc2_bias_sink, fc2_bias.shape(), fc2_bias.dtype(), x.stream(), wanted);
    if (wanted) add_expert_products(dbias, bias_factors(), dout, rows);
    if (options.adds_fc2_bias && !options.weighs_input) {
      const Tensor ones = full({rows.count(), 1}, 1.0f, x.dtype(), x.stream());
      Tensor biases = empty_like(dout);
      for_experts(rows, [&](int64_t e, const auto& of) {
        kernels::matmul(of(biases).view(), of(ones).view(), Transpose::kNo,
                        of_expert(ConstView(fc2_bias.view()), e), Transpose::kNo, {}, 0.0f,
                        x.stream());
      });
      Tensor scratch = empty_like(dout);
      kernels::weigh_rows_backward(scratch.view(), dweights.view(), dout.view(), biases.view(),
                                   weights.view(), rows.slots.view(), x.stream());
    }
    return dbias.result();
  }

  // Through the activation and the weights: the gradients of fc1's output, of its bias and of the
  // weights. `dinside`, the gradient of what fc2 reads, becomes that input. `dwide8`: that of fc1's
  // output in FP8 if one kernel makes both.
  Tensor activation_gradient(Tensor& dinside, Fp8Rows& dwide8, Tensor& dweights, Grads& grads,
                             const Wants& wants) const {
    Tensor dwide = empty_like(wide);
    if (is_fused()) {
      if (fc1_fp8.rows.defined()) dwide8 = Fp8Rows(dwide, options.fp8_gradients);
      kernels::weighed_activation_backward(dwide.view(), dwide8.view(), dinside.view(),
                                           dweights.view(), std::as_const(dinside).view(),
                                           wide.view(), weights.view(), rows.slots.view(),
                                           options.activation, x.stream());
      return dwide;
    }
    Tensor inside = empty_like(dinside);
    activate(inside);
    if (!options.weighs_input) {
      kernels::weigh_rows_backward(dinside.view(), dweights.view(), dinside.view(), inside.view(),
                                   weights.view(), rows.slots.view(), x.stream());
      weigh(inside, inside, weights, rows);
    }
    ParameterGradient dbias(fc1_bias_sink, fc1_bias.shape(), fc1_bias.dtype(), x.stream(),
                            wants[3]);
    const auto differentiate = [&](Tensor dx, const Tensor& d, const Tensor& input, ConstView bias,
                                   TensorView sums) {
      Workspace workspace(sums.is_null() ? 0
                                         : kernels::bias_activation_backward_workspace_bytes(
                                               input.shape(), x.stream()),
                          x.stream());
      kernels::bias_activation_backward(dx.view(), sums, d.view(), input.view(), bias,
                                        options.activation, dbias.beta(), workspace.view(),
                                        x.stream());
    };
    if (!fc1_bias.defined()) {
      differentiate(dwide, dinside, wide, {}, {});
    } else {
      for_experts(rows, [&](int64_t e, const auto& of) {
        differentiate(of(dwide), of(dinside), of(wide),
                      as_vector(of_expert(ConstView(fc1_bias.view()), e)),
                      as_vector(of_expert(dbias.view(), e)));
      });
    }
    grads[3] = dbias.result();
    dinside = inside;
    return dwide;
  }

  // The gradients of fc2's output, [R, h], and `rounded` with products in FP8.
  Tensor gathered_gradients(const Tensor& dy, Fp8Rows& rounded) const {
    if (!fc2_fp8.rows.defined()) return gathered_tokens(dy, rows);
    Tensor dout({rows.count(), dy.size(1)}, dy.dtype(), dy.stream());
    rounded = Fp8Rows(dout, options.fp8_gradients);
    kernels::gather_rounded_rows(dout.view(), rounded.view(), dy.view(), rows.slots.view(), rows.k,
                                 dy.stream());
    return dout;
  }

  // All gradients but that of fc1, and that of fc1's output.
  Grads backward(const Tensor& dy, const Wants& wants, Tensor& dwide) const {
    const Stream stream = x.stream();
    Grads grads(10);
    Tensor dweights = zeros(weights.shape(), DType::kFloat32, stream);
    Fp8Rows dwide8;
    {
      Fp8Rows dout8;
      const Tensor dout = gathered_gradients(dy, dout8);
      if (fc2_bias.defined()) grads[5] = bias_gradient(dweights, dout, wants[5]);
      Tensor inside({rows.count(), inner()}, x.dtype(), stream);  // its gradient first
      if (dout8.numbers.defined()) {
        multiply_experts(inside, std::exchange(dout8, {}), fc2_fp8, Transpose::kNo, rows);
      } else {
        multiply_experts(inside, dout, fc2, Transpose::kNo, rows);
      }
      if (fc2_adapter.a.defined()) {
        fc2_adapter.differentiate(inside, grads[8], grads[9], dout, activations(), wants[8],
                                  wants[9], rows);
      }
      dwide = activation_gradient(inside, dwide8, dweights, grads, wants);
      ParameterGradient dfc2(fc2_sink, fc2.shape(), fc2.dtype(), stream, wants[4]);
      if (wants[4]) add_expert_products(dfc2, dout, inside, rows);
      grads[4] = dfc2.result();
    }
    Tensor dinputs({rows.count(), x.size(1)}, x.dtype(), stream);
    if (dwide8.numbers.defined()) {
      multiply_experts(dinputs, std::exchange(dwide8, {}), fc1_fp8, Transpose::kNo, rows);
    } else {
      multiply(dinputs, dwide, fc1, fc1_fp8, Transpose::kNo);
    }
    if (fc1_adapter.a.defined()) {
      fc1_adapter.differentiate(dinputs, grads[6], grads[7], dwide, inputs(), wants[6], wants[7],
                                rows);
    }
    if (options.weighs_input) {
      kernels::weigh_rows_backward(dinputs.view(), dweights.view(), dinputs.view(),
                                   gathered_tokens(x, rows).view(), weights.view(),
                                   rows.slots.view(), stream);
    }
    if (wants[0]) grads[0] = combined(dinputs, rows);
    grads[1] = dweights;
    return grads;
  }

  Tensor fc1_gradient(const Tensor& dwide) const {
    ParameterGradient dfc1(fc1_sink, fc1.shape(), fc1.dtype(), x.stream(), true);
    add_expert_products(dfc1, dwide, inputs(), rows);
    return dfc1.result();
  }
};

ExpertPass::ExpertPass(const Tensor& ids, const ExpertMatrices& matrices,
                       const ExpertMlpOptions& options) {
  const auto& [fc1, fc1_bias, fc2, fc2_bias, fc1_adapter, fc2_adapter, fc1_fp8, fc2_fp8] = matrices;
  const int64_t experts = fc1.size(0);
  const int64_t widths = is_gated(options.activation) ? 2 : 1;
  expect_shape(fc1.shape(), {experts, widths * fc2.size(2), fc1.size(2)}, "expert_mlp: fc1");
  expect_shape(fc2.shape(), {experts, fc1.size(2), fc2.size(2)}, "expert_mlp: fc2");
  saved_ = std::make_shared<Saved>(
      Saved{.options = options,
            .rows = rows_of(ids, experts, fc1_bias.defined() || fc2_bias.defined(), options),
            .x = {},
            .weights = {},
            .wide = {},
            .fc1 = fc1.data(),
            .fc1_bias = data_of(fc1_bias),
            .fc2 = fc2.data(),
            .fc2_bias = data_of(fc2_bias),
            .fc1_sink = fc1.grad_sink(),
            .fc1_bias_sink = sink_of(fc1_bias),
            .fc2_sink = fc2.grad_sink(),
            .fc2_bias_sink = sink_of(fc2_bias),
            .fc1_adapter = SavedAdapter(fc1_adapter),
            .fc2_adapter = SavedAdapter(fc2_adapter),
            .fc1_fp8 = fc1_fp8,
            .fc2_fp8 = fc2_fp8});
}

Tensor ExpertPass::forward(const Tensor& x, const Tensor& weights) {
  const TraceRange range("expert_mlp", x.stream());
  expect_shape(x.shape(), {saved_->rows.rows.size(0), saved_->fc1.size(2)}, "expert_mlp: x");
  expect_shape(weights.shape(), saved_->rows.rows.shape(), "expert_mlp: weights");
  saved_->x = x;
  saved_->weights = weights;
  return saved_->forward();
}

Grads ExpertPass::backward(const Tensor& dy, const Wants& wants, Tensor& dwide) const {
  return saved_->backward(dy, wants, dwide);
}

Tensor ExpertPass::fc1_gradient(const Tensor& dwide) const { return saved_->fc1_gradient(dwide); }

std::vector<Variable> expert_inputs(const Variable& x, const Variable& weights,
                                    const ExpertMatrices& matrices) {
  return {x,
          weights,
          matrices.fc1,
          matrices.fc1_bias,
          matrices.fc2,
          matrices.fc2_bias,
          matrices.fc1_adapter.a,
          matrices.fc1_adapter.b,
          matrices.fc2_adapter.a,
          matrices.fc2_adapter.b};
}

Variable expert_mlp(const Variable& x, const Tensor& ids, const Variable& weights,
                    const ExpertMatrices& matrices, const ExpertMlpOptions& options) {
  ExpertPass pass(ids, matrices, options);
  const Tensor y = pass.forward(x.data(), weights.data());
  return record("expert_mlp", y, expert_inputs(x, weights, matrices),
                [pass](const Tensor& dy, const Wants& wants) {
                  Tensor dwide;
                  Grads grads = pass.backward(dy, wants, dwide);
                  if (wants[2]) grads[2] = pass.fc1_gradient(dwide);
                  return grads;
                });
}

Tensor expert_mlp_of_few_tokens(const Tensor& x, const Tensor& ids, const Tensor& weights,
                                const ExpertMatrices& matrices, const ExpertMlpOptions& options) {
  if (matrices.fc1_adapter.a.defined() || matrices.fc2_adapter.a.defined()) return {};
  const Tensor fc1 = matrices.fc1.data(), fc1_bias = data_of(matrices.fc1_bias);
  const Tensor fc2 = matrices.fc2.data(), fc2_bias = data_of(matrices.fc2_bias);
  const kernels::ExpertLayers layers{
      .fc1 = fc1.view(),
      .fc1_bias = view_or_none(fc1_bias),
      .fc2 = fc2.view(),
      .fc2_bias = options.adds_fc2_bias ? view_or_none(fc2_bias) : ConstView{},
      .activation = options.activation,
      .first_expert = options.first_expert,
      .weighs_input = options.weighs_input};
  if (!kernels::has_expert_forward(x.view(), ids.view(), layers, x.stream())) return {};
  const TraceRange range("expert_mlp", x.stream());
  Tensor inside({ids.numel(), fc2.size(2)}, x.dtype(), x.stream());
  Tensor y = empty_like(x);
  kernels::expert_forward(y.view(), inside.view(), x.view(), ids.view(), weights.view(), layers,
                          x.stream());
  return y;
}

Variable weighed_rows(const Variable& x, const Variable& weights) {
  const int64_t rows = x.size(0);
  // The rows of one expert of all tokens are in the tokens' order; made on the device, no copy.
  const Tensor slots =
      rows_of(zeros({rows, 1}, DType::kInt32, x.stream()), 1, false, {.num_experts = 1}).slots;
  Tensor y = empty_like(x.data());
  kernels::weigh_rows_forward(y.view(), x.data().view(), weights.data().view(), slots.view(),
                              y.stream());
  return record(
      "weighed_rows", y, {x, weights},
      [x = x.data(), weights = weights.data(), slots](const Tensor& dy, const Wants&) -> Grads {
        Tensor dx = empty_like(x);
        Tensor dweights = zeros(weights.shape(), DType::kFloat32, x.stream());
        kernels::weigh_rows_backward(dx.view(), dweights.view(), dy.view(), x.view(),
                                     weights.view(), slots.view(), x.stream());
        return {dx, dweights};
      });
}

}  // namespace megatron
