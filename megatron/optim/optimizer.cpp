#include "megatron/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/kernels/optimizer.h"

namespace megatron {
namespace {

// The groups of the ranges over which the gradient norm is taken.
constexpr int32_t kCounted = 0;
constexpr int32_t kNotCounted = 1;
constexpr int32_t kPadding = 2;
constexpr int64_t kNumNormGroups = 3;

// Positions of the groups of `parameters`, parallel to them.
std::vector<int32_t> group_of_parameter(std::span<const ParameterGroup> groups, size_t count) {
  std::vector<int32_t> group_of(count);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const size_t parameter : groups[g].parameters) {
      group_of[parameter] = static_cast<int32_t>(g);
    }
  }
  return group_of;
}

kernels::GroupRanges ranges_in(const RangeTables& tables) {
  return {tables.ends.view(), tables.groups.view()};
}

// Measures `flat` into `found` [groups, 2]: per group the sum of squares and the number of zeros.
void measure(Tensor found, const Tensor& flat, const RangeTables& tables) {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  Tensor scratch(kernels::measure_scratch_shape(flat.numel(), found.size(0)), DType::kFloat64,
                 flat.stream());
  kernels::squares_and_zeros(found.view(), flat.view(), ranges_in(tables), scratch.view(),
                             flat.stream());
}

double learning_rate(const ParameterGroup& group, const UpdateRates& rates) {
  return (group.has_decoupled_lr ? rates.decoupled_lr : rates.lr) * group.lr_mult;
}

kernels::AdamNumbers adam_numbers(const ParameterGroup& group, const UpdateRates& rates,
                                  const OptimizerConfig& config) {
  const auto step = static_cast<double>(group.step);
  return {.lr = learning_rate(group, rates),
          .beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .eps = config.adam_eps,
          .weight_decay = rates.weight_decay * group.wd_mult,
          .bias_correction1 = 1.0 - std::pow(config.adam_beta1, step),
          .bias_correction2 = 1.0 - std::pow(config.adam_beta2, step)};
}

kernels::SgdNumbers sgd_numbers(const ParameterGroup& group, const UpdateRates& rates,
                                const OptimizerConfig& config) {
  return {.lr = learning_rate(group, rates),
          .momentum = config.sgd_momentum,
          .weight_decay = rates.weight_decay * group.wd_mult};
}

template <class Numbers, class F>
std::vector<Numbers> numbers_of(std::span<const ParameterGroup> groups, const F& make) {
  std::vector<Numbers> numbers;
  for (const ParameterGroup& group : groups) numbers.push_back(make(group));
  return numbers;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(std::span<const OptimizedParameter> parameters) {
  const auto rank_of = [](const ParameterGroup& g) {
    return std::tuple(g.wd_mult == 0.0, g.has_decoupled_lr, g.lr_mult != 1.0, g.lr_mult);
  };
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    ParameterGroup wanted;
    wanted.wd_mult = parameters[i].has_weight_decay ? 1.0 : 0.0;
    wanted.lr_mult = parameters[i].lr_mult;
    wanted.has_decoupled_lr = parameters[i].has_decoupled_lr;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& g) {
      return rank_of(g) == rank_of(wanted);
    });
    if (group == groups.end()) group = groups.insert(groups.end(), wanted);
    group->parameters.push_back(i);
  }
  std::sort(groups.begin(), groups.end(), [&](const ParameterGroup& a, const ParameterGroup& b) {
    return rank_of(a) < rank_of(b);
  });
  return groups;
}

Optimizer::Optimizer(FlatParameters& parameters, const OptimizerConfig& config,
                     SumOverModel sum_over_model)
    : parameters_(parameters),
      config_(config),
      sum_over_model_(std::move(sum_over_model)),
      scaler_(make_loss_scaler(config)),
      groups_(parameter_groups(parameters.parameters())) {
  for (const FlatBuffer& buffer : parameters_.buffers()) states_.push_back(make_state(buffer));
}

Optimizer::BufferState Optimizer::make_state(const FlatBuffer& buffer) const {
  const MemoryScope scope(MemoryCategory::kOptimizer);
  const auto make_zeros = [&] {
    return zeros(buffer.params.shape(), DType::kFloat32, buffer.params.stream());
  };
  BufferState state;
  state.main =
      buffer.dtype == DType::kFloat32 ? buffer.params : cast(buffer.params, DType::kFloat32);
  if (config_.optimizer == OptimizerKind::kAdam) {
    state.exp_avg = make_zeros();
    state.exp_avg_sq = make_zeros();
  } else {
    state.momentum_buffer = make_zeros();
  }

  const std::vector<OptimizedParameter>& all = parameters_.parameters();
  const std::vector<int32_t> group_of = group_of_parameter(groups_, all.size());
  std::vector<int32_t> update_groups;
  std::vector<int32_t> norm_groups;
  for (const size_t parameter : buffer.parameters) {
    update_groups.push_back(group_of[parameter]);
    norm_groups.push_back(all[parameter].counts_in_norm ? kCounted : kNotCounted);
  }
  // Padding is zero in gradients and state, so an update leaves it zero.
  const Stream stream = buffer.params.stream();
  state.update = range_tables(ranges_of(buffer.layout, update_groups), stream);
  state.norm = range_tables(ranges_of(buffer.layout, norm_groups, kPadding), stream);
  return state;
}

Optimizer::Measures Optimizer::measured(Tensor FlatBuffer::*flat) const {
  Measures sum;
  if (states_.empty()) return sum;
  const auto count = static_cast<int64_t>(states_.size());
  const std::vector<FlatBuffer>& buffers = parameters_.buffers();
  const Stream stream = (buffers.front().*flat).stream();
  const Tensor found({count, kNumNormGroups, 2}, DType::kFloat64, stream);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    measure(found.slice(i, 1).reshape({kNumNormGroups, 2}), buffers[at].*flat, states_[at].norm);
  }
  const Tensor here = found.to(Stream{});  // the one wait for the device in an iteration
  const auto numbers = here.span<double>();
  constexpr size_t kCountedAt = size_t{2} * kCounted;  // {squares, zeros} of a group
  constexpr size_t kNotCountedAt = size_t{2} * kNotCounted;
  for (size_t at = 0; at < numbers.size(); at += 2 * kNumNormGroups) {
    sum.counted_squares += numbers[at + kCountedAt];
    sum.counted_zeros += numbers[at + kCountedAt + 1];
    sum.all_squares += numbers[at + kCountedAt] + numbers[at + kNotCountedAt];
  }
  return sum;
}

StepResult Optimizer::step(const UpdateRates& rates) {
  const Measures local = measured(&FlatBuffer::grads);
  const bool is_finite_here = std::isfinite(local.all_squares);
  std::array<double, 3> sums = {local.counted_squares, local.counted_zeros,
                                is_finite_here ? 0.0 : 1.0};
  if (sum_over_model_) sum_over_model_(sums);
  const auto [squares, zeros, num_not_finite] = sums;
  const bool found_inf = num_not_finite > 0.0;

  const double inverse_scale = 1.0 / loss_scale();
  if (scaler_) {
    scaler_->update(found_inf);
    if (found_inf) return {};
  } else if (found_inf && config_.check_for_nan_in_loss_and_grad) {
    throw_not_finite();
  }

  StepResult result;
  result.ok = true;
  double grad_scale = inverse_scale;
  if (config_.clip_grad > 0.0) {
    const double norm = std::sqrt(squares) * inverse_scale;
    const double coefficient = config_.clip_grad / (norm + 1e-6);
    if (coefficient < 1.0) grad_scale *= coefficient;
    result.grad_norm = norm;
  }
  if (config_.log_num_zeros_in_grad) result.num_zeros = static_cast<int64_t>(zeros);
  update(rates, grad_scale);
  return result;
}

std::optional<size_t> Optimizer::first_not_finite() const {
  std::optional<size_t> first;
  for (const FlatBuffer& buffer : parameters_.buffers()) {
    std::vector<int32_t> group_of(buffer.parameters.size());  // every parameter its own
    std::iota(group_of.begin(), group_of.end(), 0);
    const auto padding = static_cast<int32_t>(group_of.size());
    const Stream stream = buffer.grads.stream();
    const RangeTables tables = range_tables(ranges_of(buffer.layout, group_of, padding), stream);
    const Tensor found({padding + 1, 2}, DType::kFloat64, stream);
    measure(found, buffer.grads, tables);
    const Tensor here = found.to(Stream{});
    for (size_t i = 0; i < group_of.size(); ++i) {
      if (std::isfinite(here.span<double>()[2 * i])) continue;
      first = std::min(first.value_or(buffer.parameters[i]), buffer.parameters[i]);
    }
  }
  return first;
}

void Optimizer::throw_not_finite() const {
  const std::optional<size_t> first = first_not_finite();
  const std::string where =
      first ? "first in " + parameters_.parameters()[*first].name : "on another rank";
  throw Error(
      fmt::format("gradients hold infinite or not-a-number elements, {}; lower --lr or "
                  "resume from an earlier checkpoint "
                  "(--no-check-for-nan-in-loss-and-grad trains on regardless)",
                  where));
}

void Optimizer::update(const UpdateRates& rates, double grad_scale) {
  for (ParameterGroup& group : groups_) group.step += 1;
  for (size_t i = 0; i < states_.size(); ++i) {
    FlatBuffer& buffer = parameters_.buffers()[i];
    BufferState& state = states_[i];
    const Stream stream = buffer.params.stream();
    const bool has_copy = buffer.dtype != DType::kFloat32;
    const TensorView model = has_copy ? buffer.params.view() : TensorView{};
    const ConstView grad = buffer.grads.view();
    const kernels::GroupRanges ranges = ranges_in(state.update);
    if (config_.optimizer == OptimizerKind::kAdam) {
      const auto numbers = numbers_of<kernels::AdamNumbers>(
          groups_, [&](const ParameterGroup& g) { return adam_numbers(g, rates, config_); });
      kernels::adam(model, state.main.view(), state.exp_avg.view(), state.exp_avg_sq.view(), grad,
                    ranges, numbers, grad_scale, stream);
    } else {
      const auto numbers = numbers_of<kernels::SgdNumbers>(
          groups_, [&](const ParameterGroup& g) { return sgd_numbers(g, rates, config_); });
      kernels::sgd_momentum(model, state.main.view(), state.momentum_buffer.view(), grad, ranges,
                            numbers, grad_scale, stream);
    }
  }
}

double Optimizer::parameter_norm() const {
  std::array<double, 1> squares = {measured(&FlatBuffer::params).counted_squares};
  if (sum_over_model_) sum_over_model_(squares);
  return std::sqrt(squares[0]);
}

void Optimizer::visit_state(const StateVisitor& visit) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    const FlatBuffer& buffer = parameters_.buffers()[i];
    const BufferState& state = states_[i];
    for (size_t k = 0; k < buffer.parameters.size(); ++k) {
      const OptimizedParameter& parameter = parameters_.parameters()[buffer.parameters[k]];
      const auto show = [&](std::string_view name, const Tensor& flat) {
        visit(parameter.name, name,
              part_of(flat, buffer.layout.places[k], parameter.variable.shape()));
      };
      if (buffer.dtype != DType::kFloat32) show("main_param", state.main);
      if (state.exp_avg.defined()) show("exp_avg", state.exp_avg);
      if (state.exp_avg_sq.defined()) show("exp_avg_sq", state.exp_avg_sq);
      if (state.momentum_buffer.defined()) show("momentum_buffer", state.momentum_buffer);
    }
  }
}

OptimizerScalars Optimizer::scalars() const {
  OptimizerScalars scalars;
  for (const ParameterGroup& group : groups_) scalars.group_steps.push_back(group.step);
  if (scaler_) scalars.loss_scaler = scaler_->state();
  return scalars;
}

void Optimizer::load(const OptimizerScalars& scalars) {
  if (scalars.group_steps.size() != groups_.size()) {
    throw ConfigError(fmt::format(
        "the checkpoint's optimizer has {} parameter groups, this model {}; load with the flags "
        "it was saved with, or pass --no-load-optim",
        scalars.group_steps.size(), groups_.size()));
  }
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i].step = scalars.group_steps[i];
  if (scaler_ && scalars.loss_scaler) scaler_->load(*scalars.loss_scaler);
}

void Optimizer::reload_main_params() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const FlatBuffer& buffer = parameters_.buffers()[i];
    if (buffer.dtype != DType::kFloat32) copy_into(states_[i].main, buffer.params);
  }
}

}  // namespace megatron
