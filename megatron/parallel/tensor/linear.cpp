#include "megatron/parallel/tensor/linear.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "megatron/autograd/delayed_gradients.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/fp8_linear.h"
#include "megatron/parallel/tensor/input_gradient.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/pieces.h"
#include "megatron/parallel/tensor/rounded_linear.h"

namespace megatron {
namespace {

int64_t divided(int64_t size, int64_t by, const char* what) {
  if (size % by == 0) return size / by;
  throw ConfigError(
      fmt::format("{} {} does not divide among {} tensor-parallel ranks; choose another "
                  "--tensor-model-parallel-size",
                  what, size, by));
}

// Do slices of the sequence, such as x, travel beside products? Whole sequences travel beside the
// work of another microbatch (core/turns.h).
bool overlaps_comm(const Shape& slice, Stream stream, const TensorParallel& tp) {
  return tp.sequence_parallel && tp.overlaps_products && tp.size() > 1 && !takes_turns() &&
         worth_overlapping(slice, stream);
}

}  // namespace

Shape whole_shape(const Tensor& x, const TensorParallel& tp) {
  return tp.sequence_parallel ? x.shape().with(0, x.size(0) * tp.size()) : x.shape();
}

void for_whole_rows(const Tensor& x, const TensorParallel& tp, const UseRows& product) {
  if (!tp.sequence_parallel) return product(0, x);
  if (!overlaps_comm(x.shape(), x.stream(), tp)) {
    return product(0, gathered_sequence(x, tp.group));
  }
  GatheredPieces(x, tp.group).for_each(product);
}

Variable column_parallel_linear(const Variable& x, const Variable& weight, const Variable& bias,
                                const TensorParallel& tp) {
  const TraceRange range("column_parallel_linear", x.stream());
  if (tp.size() == 1) return linear(x, weight, bias);
  Tensor y(whole_shape(x.data(), tp).with(-1, weight.size(0)), x.dtype(), x.stream());
  for_whole_rows(x.data(), tp, [&](int64_t first, const Tensor& rows) {
    Tensor part = y.slice(first, rows.size(0));
    linear_forward_into(part, rows, weight, bias);
  });
  return record(
      "column_parallel_linear", std::move(y), {x, weight, bias},
      [x = x.data(), saved = linear_saved(weight, bias), tp](const Tensor& dy, const Wants& wants) {
        return column_parallel_gradients(dy, x, saved, wants, tp);
      });
}

namespace {

// Starts fetching the whole x of a column-parallel layer, for the gradient of its weight.
class GatheredInput {
 public:
  GatheredInput(const Tensor& x, const TensorParallel& tp) : x_(x) {
    if (!tp.sequence_parallel || tp.size() == 1) return;
    if (overlaps_comm(x.shape(), x.stream(), tp)) {
      pieces_.emplace(x, tp.group);
      return;
    }
    x_ = Tensor(whole_shape(x, tp), x.dtype(), x.stream());
    gathering_ = comm::start_all_gather(x_.view(), x.view(), tp.group, x.stream());
    if (!tp.overlaps_gradients) gathering_.wait();
  }

  void wait() {
    if (pieces_) pieces_->wait();
    gathering_.wait();
  }
  void for_rows(const UseRows& use) {
    if (pieces_) return pieces_->for_stretches(use);
    use(0, x_);
  }

 private:
  Tensor x_;
  comm::Pending gathering_;
  std::optional<GatheredPieces> pieces_;
};

}  // namespace

Grads column_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                                const Wants& wants, const TensorParallel& tp) {
  if (wants[1] && DelayedGradients::delays(saved.weight_sink)) {
    DelayedGradients::now_or_later(saved.weight_sink, [dy, x, saved, tp] {
      return column_parallel_gradients(dy, x, saved, Wants({false, true, false}), tp)[1];
    });
    return column_parallel_gradients(dy, x, saved, Wants({wants[0], false, wants[2]}), tp);
  }
  std::optional<GatheredInput> input;
  if (wants[1]) input.emplace(x, tp);  // beside the product that makes dx
  Tensor partial = wants[0] ? linear_input_gradient(dy, saved) : Tensor();
  if (input) input->wait();  // before the next transfer begins: transfers take turns
  InputGradient dx(std::move(partial), tp);
  WeightGradient dweight(saved, wants[1]);
  if (input) {
    input->for_rows([&](int64_t first, const Tensor& rows) {
      dweight.add(dy.slice(first, rows.size(0)), rows);
    });
  }
  Tensor dbias = wants[2] ? linear_bias_gradient(dy, saved) : Tensor();
  return {dx.finish(), dweight.result(), std::move(dbias)};
}

Tensor row_parallel_forward(const Tensor& x, const Variable& weight, const TensorParallel& tp,
                            bool may_split_k) {
  if (tp.size() == 1) {
    return may_split_k ? linear_split_k(x, weight) : linear_forward(x, weight, Variable());
  }
  const Shape whole = x.shape().with(-1, weight.size(0));
  if (!tp.sequence_parallel) {
    Tensor y = linear_forward(x, weight, Variable());
    comm::all_reduce(y.view(), comm::Reduce::kSum, tp.group, y.stream());
    return y;
  }
  const int64_t count = sequence_slice_size(x, tp.group);
  if (!overlaps_comm(whole.with(0, count), x.stream(), tp)) {
    return scattered_sum(linear_forward(x, weight, Variable()), tp.group);
  }
  return summed_by_pieces(whole, x.dtype(), x.stream(), tp.group, [&](int64_t first, Tensor& rows) {
    linear_forward_into(rows, x.slice(first, rows.size(0)), weight, Variable());
  });
}

Tensor row_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                              bool wants_weight, const TensorParallel& tp,
                              const UseRows& input_gradient) {
  if (wants_weight && DelayedGradients::delays(saved.weight_sink)) {
    DelayedGradients::now_or_later(saved.weight_sink, [dy, x, saved, tp] {
      return row_parallel_gradients(dy, x, saved, true, tp, [](int64_t, const Tensor&) {});
    });
    wants_weight = false;
  }
  WeightGradient dweight(saved, wants_weight);
  const auto add = [&](int64_t first, const Tensor& rows) {
    dweight.add(rows, x.slice(first, rows.size(0)));
  };
  if (!overlaps_comm(dy.shape(), dy.stream(), tp)) {
    for_whole_rows(dy, tp, [&](int64_t, const Tensor& rows) {
      input_gradient(0, rows);
      add(0, rows);
    });
    return dweight.result();
  }
  const int64_t own = tp.rank() * dy.size(0);
  GatheredPieces pieces(dy, tp.group);
  pieces.for_each([&](int64_t first, const Tensor& rows) {
    input_gradient(first, rows);
    if (first == own) add(first, rows);
  });
  pieces.for_stretches([&](int64_t first, const Tensor& rows) {
    if (first != own) add(first, rows);
  });
  return dweight.result();
}

namespace {

// The side in FP8 of a layer, null if it has none.
std::unique_ptr<Fp8Layer> fp8_layer(const LinearOptions& options, const Variable& weight,
                                    Stream stream) {
  if (!options.fp8.is_on()) return nullptr;
  return std::make_unique<Fp8Layer>(options.fp8, weight, stream);
}

// Replaces the elements of a layer's weight, and so of the model's parameter.
void round_elements(RoundedWeight& rounded, Variable weight, ParameterRole role,
                    InferenceWeights form) {
  if (role != ParameterRole::kMatrix || rounded.scales.defined()) return;
  rounded = rounded_rows(weight.data(), form);
  weight.set_data(rounded.numbers);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                                           const LinearOptions& options, const Placement& placement)
    : tp_(tp), role_(options.role), rounded_(std::make_unique<RoundedWeight>()) {
  const int64_t parts = options.stacked_parts;
  const int64_t local = parts * divided(out / parts, tp.size(), "an output size of");
  ParameterInfo info{.role = options.role,
                     .init = options.init,
                     .sharding = tp.sharding(0, parts),
                     .has_vocabulary_rows = options.has_vocabulary_rows,
                     .row_parts = options.row_parts};
  weight_ = add_parameter("weight", {local, in}, info, placement);
  if (options.has_bias) {
    info.role = ParameterRole::kBias;
    info.init = Init::zeros();
    info.row_parts.clear();
    bias_ = add_parameter("bias", {local}, info, placement);
  }
  fp8_ = fp8_layer(options, weight_, placement.stream);
  if (fp8_) add_child("fp8", *fp8_);
  if (options.lora.rank == 0) return;
  adapter_.emplace(in, out, parts, tp, options.lora, placement);
  add_child(kAdapter, *adapter_);
}

ColumnParallelLinear::~ColumnParallelLinear() = default;

void ColumnParallelLinear::round_weight(InferenceWeights form) const {
  round_elements(*rounded_, weight_, role_, form);
}

bool ColumnParallelLinear::has_rounded_weight() const { return rounded_->scales.defined(); }

const Tensor& ColumnParallelLinear::weight_scales() const { return rounded_->scales; }

Variable ColumnParallelLinear::product(const Variable& x, const Variable& bias) const {
  if (has_rounded_weight()) return rounded_column_parallel_linear(x, *rounded_, bias, tp_);
  if (fp8_) return fp8_column_parallel_linear(x, {*fp8_, weight_, bias}, tp_);
  return column_parallel_linear(x, weight_, bias, tp_);
}

Variable ColumnParallelLinear::forward(const Variable& x, const DropoutKey& adapter_dropout) const {
  const Variable y = product(x, bias_);
  return adapter_ ? add(y, adapter_->forward(x, adapter_dropout)) : y;
}

Variable ColumnParallelLinear::forward_without_bias(const Variable& x,
                                                    const DropoutKey& adapter_dropout) const {
  const Variable y = product(x, Variable());
  return adapter_ ? add(y, adapter_->forward(x, adapter_dropout)) : y;
}

RowParallelLinear::RowParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                                     const LinearOptions& options, const Placement& placement)
    : tp_(tp), role_(options.role), rounded_(std::make_unique<RoundedWeight>()) {
  const int64_t local = divided(in, tp.size(), "an input size of");
  weight_ = add_parameter("weight", {out, local},
                          {.role = options.role, .init = options.init, .sharding = tp.sharding(1)},
                          placement);
  if (options.has_bias) {
    bias_ = add_parameter("bias", {out}, {.role = ParameterRole::kBias}, placement);
  }
  fp8_ = fp8_layer(options, weight_, placement.stream);
  if (fp8_) add_child("fp8", *fp8_);
  if (options.lora.rank == 0) return;
  adapter_.emplace(in, out, tp, options.lora, placement);
  add_child(kAdapter, *adapter_);
}

RowParallelLinear::~RowParallelLinear() = default;

void RowParallelLinear::round_weight(InferenceWeights form) const {
  round_elements(*rounded_, weight_, role_, form);
}

bool RowParallelLinear::has_rounded_weight() const { return rounded_->scales.defined(); }

Variable RowParallelLinear::forward_without_bias(const Variable& x,
                                                 const DropoutKey& adapter_dropout,
                                                 bool may_split_k) const {
  // Between the two products of a branch: the other microbatch is half a branch behind.
  start_other();
  Variable y;
  if (has_rounded_weight()) {
    y = rounded_row_parallel_linear(x, *rounded_, tp_);
  } else if (fp8_) {
    y = fp8_row_parallel_linear(x, {*fp8_, weight_}, tp_);
  } else {
    y = row_parallel_linear(x, weight_, tp_, may_split_k && !adapter_);
  }
  return adapter_ ? add(y, adapter_->forward(x, adapter_dropout)) : y;
}

Variable row_parallel_linear(const Variable& x, const Variable& weight, const TensorParallel& tp,
                             bool may_split_k) {
  const bool splits_k = may_split_k && !grad_enabled();
  if (tp.size() == 1 && !splits_k) return linear(x, weight, Variable());
  const TraceRange range("row_parallel_linear", x.stream());
  if (splits_k) return Variable(row_parallel_forward(x.data(), weight, tp, true));
  return record("row_parallel_linear", row_parallel_forward(x.data(), weight, tp), {x, weight},
                [x = x.data(), saved = linear_saved(weight, Variable()), tp](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  Tensor dx = wants[0] ? empty_like(x) : Tensor();
                  Tensor dweight = row_parallel_gradients(
                      dy, x, saved, wants[1], tp, [&](int64_t first, const Tensor& rows) {
                        if (!dx.defined()) return;
                        Tensor part = dx.slice(first, rows.size(0));
                        linear_input_gradient_into(part, rows, saved);
                      });
                  return {std::move(dx), std::move(dweight)};
                });
}

}  // namespace megatron
