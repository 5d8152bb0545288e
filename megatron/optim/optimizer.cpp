#include "megatron/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/random.h"
#include "megatron/device/staging.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/optimizer.h"

namespace megatron {
namespace {

kernels::GroupRanges ranges_in(const RangeTables& tables) {
  return {tables.ends.view(), tables.groups.view()};
}

// Writes the sum of squares and the number of zeros of each group of `flat` to `found` [groups, 2].
void measure(Tensor found, const Tensor& flat, const RangeTables& tables) {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  Tensor scratch(kernels::measure_scratch_shape(flat.numel(), found.size(0)), DType::kFloat64,
                 flat.stream());
  kernels::squares_and_zeros(found.view(), flat.view(), ranges_in(tables), scratch.view(),
                             flat.stream());
}

// The stream of all parameters, which are on one device.
Stream stream_of(const FlatParameters& parameters) {
  return parameters.buffers().empty() ? Stream{} : parameters.buffers().front().params.stream();
}

}  // namespace

Optimizer::Optimizer(FlatParameters& parameters, const OptimizerConfig& config,
                     SumOverModel sum_over_model)
    : parameters_(parameters),
      config_(config),
      sum_over_model_(std::move(sum_over_model)),
      scaler_(make_loss_scaler(config)),
      groups_(parameter_groups(parameters.parameters())),
      stream_(stream_of(parameters)),
      state_stream_(config.optimizer_cpu_offload ? host_beside(stream_) : stream_),
      state_({kernels::kStepStateBytes}, DType::kUInt8, stream_),
      apart_state_(config.clips_apart ? Tensor({kernels::kStepStateBytes}, DType::kUInt8, stream_)
                                      : Tensor()),
      decision_(kernels::kStepStateBytes, stream_.device),
      parameter_sums_(kernels::kNumStepSums * size_of(DType::kFloat64), stream_.device) {
  for (size_t i = 0; i < parameters_.buffers().size(); ++i) {
    for (size_t share = 0; share < parameters_.buffers()[i].shares.size(); ++share) {
      const FlatSpan& all = parameters_.buffers()[i].shares[share];
      const int64_t piece = config_.optimizer_cpu_offload ? kHostPiece : all.size();
      for (int64_t begin = all.begin; begin < all.end; begin += piece) {
        states_.push_back(make_state(i, share, {begin, std::min(begin + piece, all.end)}));
      }
    }
  }
  if (config_.optimizer_cpu_offload) {
    int64_t most = 1;
    for (const ShareState& state : states_) most = std::max(most, state.span.size());
    const MemoryScope purpose(MemoryCategory::kOptimizer, "gradients and parameters on their way");
    host_.emplace(most, stream_);
  }
  upload_state();
}

void Optimizer::upload_state() {
  kernels::StepState state;
  if (scaler_) state.loss_scale = scaler_->state();
  for (Tensor* decision : {&state_, &apart_state_}) {
    if (!decision->defined()) continue;
    upload_bytes(decision->view().data, &state, kernels::kStepStateBytes, stream_);
  }
}

const Tensor& Optimizer::decision_of(const ShareState& state) const {
  return parameters_.buffers()[state.buffer].is_clipped_apart ? apart_state_ : state_;
}

Tensor Optimizer::share_of(Tensor FlatBuffer::*flat, const ShareState& state) const {
  const FlatBuffer& buffer = parameters_.buffers()[state.buffer];
  return megatron::share_of(buffer, flat, state.share)
      .slice(state.span.begin - buffer.shares[state.share].begin, state.span.size());
}

Tensor Optimizer::joined_main(const ShareState& state, int64_t begin, int64_t size) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const Tensor params = share_of(&FlatBuffer::params, state).slice(begin, size);
  Tensor main({size}, DType::kFloat32, state_stream_);
  kernels::join_main_params(main.view(), params.view(), state.remainder.slice(begin, size).view(),
                            state_stream_);
  return main;
}

Tensor Optimizer::decoded(const StateMemory& codes, const StateSpec& spec) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  Tensor moment(codes.elements.shape(), DType::kFloat32, state_stream_);
  kernels::decode_moment(moment.view(), codes.moment(), spec.code(config_), state_stream_);
  return moment;
}

std::unique_ptr<UpdateRule> Optimizer::make_rule(size_t index, size_t share,
                                                 const FlatSpan& span) const {
  const FlatBuffer& buffer = parameters_.buffers()[index];
  if (config_.optimizer != OptimizerKind::kMuon || !buffer.has_matrices) {
    return make_element_rule(config_);
  }
  FlatSpan bucket = {0, buffer.layout.numel};
  if (buffer.sharers.size() > 1) {
    const FlatBucket& one = buffer.layout.buckets[share];
    bucket = {one.begin, one.end};
  }
  invariant(span.size() * buffer.sharers.size() == bucket.size(), "each rank has a share");
  return make_muon_rule(config_, {buffer, parameters_.parameters(), groups_, bucket, span},
                        stream_);
}

bool Optimizer::has_main_copy(const ShareState& state) const {
  const DType dtype = parameters_.buffers()[state.buffer].dtype;
  return dtype != main_dtype(config_, dtype) || config_.optimizer_cpu_offload;
}

Optimizer::ShareState Optimizer::make_state(size_t index, size_t share,
                                            const FlatSpan& span) const {
  const MemoryScope scope(MemoryCategory::kOptimizer);
  const FlatBuffer& buffer = parameters_.buffers()[index];
  ShareState state;
  state.buffer = index;
  state.share = share;
  state.span = span;
  const Tensor params = share_of(&FlatBuffer::params, state);
  state.rule = make_rule(index, share, span);
  state.specs = state.rule->state();
  state.loaded.resize(state.specs.size());
  if (keeps_remainders(config_, buffer.dtype) && state.rule->takes_remainders()) {
    const MemoryScope purpose(MemoryCategory::kOptimizer, "main parameters beyond bf16");
    state.remainder = zeros({span.size()}, DType::kInt16, state_stream_);
  } else {
    const MemoryScope purpose(MemoryCategory::kOptimizer, "main parameters");
    const DType dtype = main_dtype(config_, buffer.dtype);
    state.main = has_main_copy(state) ? cast(params, dtype).to(state_stream_) : params;
    if (dtype == DType::kBFloat16) {
      state.rounding = rounding_tables(buffer, parameters_.parameters(), span,
                                       static_cast<uint64_t>(config_.rounding_seed), state_stream_);
    }
  }
  for (const StateSpec& spec : state.specs) {
    const MemoryScope purpose(MemoryCategory::kOptimizer, "moments");
    state.tensors.emplace_back(span.size(), spec.dtype, state_stream_);
  }

  const std::vector<OptimizedParameter>& all = parameters_.parameters();
  const std::vector<int32_t> group_of = group_of_parameter(groups_, all.size());
  std::vector<int32_t> update_groups;
  std::vector<int32_t> norm_groups;
  std::vector<int32_t> apart_groups;
  std::vector<int32_t> positions;
  for (const size_t parameter : buffer.parameters) {
    update_groups.push_back(group_of[parameter]);
    const auto group = [&](bool is_apart) {
      const bool counts =
          all[parameter].counts_in_norm && all[parameter].is_clipped_apart == is_apart;
      return counts ? kernels::kCountedInNorm : kernels::kNotCountedInNorm;
    };
    norm_groups.push_back(group(false));
    apart_groups.push_back(group(true));
    positions.push_back(static_cast<int32_t>(parameter));
  }
  // Padding is zero in gradients and state, so an update leaves it zero.
  const auto tables = [&](const FlatRanges& ranges, Stream stream) {
    return range_tables(cut_to(ranges, span), stream);
  };
  state.update = tables(ranges_of(buffer.layout, update_groups), state_stream_);
  if (std::ranges::any_of(state.tensors,
                          [](const StateMemory& x) { return x.exponents.defined(); })) {
    add_keys(state, update_groups);
  }
  state.norm = tables(ranges_of(buffer.layout, norm_groups, kernels::kPaddingInNorm), stream_);
  if (config_.clips_apart) {
    state.apart_norm =
        tables(ranges_of(buffer.layout, apart_groups, kernels::kPaddingInNorm), stream_);
  }
  state.parameter = tables(ranges_of(buffer.layout, positions), stream_);
  return state;
}

void Optimizer::add_keys(ShareState& state, std::span<const int32_t> groups) const {
  const FlatBuffer& buffer = parameters_.buffers()[state.buffer];
  std::vector<int32_t> numbers(buffer.parameters.size());  // one range for each parameter
  std::iota(numbers.begin(), numbers.end(), 0);
  FlatRanges ranges = cut_to(ranges_of(buffer.layout, numbers), state.span);
  std::vector<int32_t> keys;
  int64_t begin = state.span.begin;
  for (size_t i = 0; i < ranges.ends.size(); ++i) {
    const auto number = static_cast<size_t>(ranges.groups[i]);
    const int64_t block = (begin - buffer.layout.places[number].begin) / kernels::kMomentBlock;
    const std::string& name = parameters_.parameters()[buffer.parameters[number]].name;
    keys.push_back(static_cast<int32_t>(hash_of(name) + static_cast<uint64_t>(block)));
    ranges.groups[i] = groups[number];
    begin = state.span.begin + ranges.ends[i];
  }
  state.update = range_tables(ranges, state_stream_);
  state.update_keys = tensor_of(keys, {static_cast<int64_t>(keys.size())}).to(state_stream_);
}

Tensor Optimizer::loss_seed(int64_t num_microbatches) const {
  Tensor seed({}, DType::kFloat32, stream_);
  kernels::loss_seed(seed.view(), state_.view(), num_microbatches, stream_);
  return seed;
}

Tensor Optimizer::sums_of(Tensor FlatBuffer::*flat, const Tensor& losses,
                          RangeTables ShareState::*role) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const auto count = static_cast<int64_t>(states_.size());
  const Tensor found({count, kernels::kNumNormGroups, 2}, DType::kFloat64, stream_);
  for (int64_t i = 0; i < count; ++i) {
    const ShareState& state = states_[static_cast<size_t>(i)];
    measure(found.slice(i, 1).reshape({kernels::kNumNormGroups, 2}), share_of(flat, state),
            state.*role);
  }
  Tensor sums({kernels::kNumStepSums}, DType::kFloat64, stream_);
  kernels::step_sums(sums.view(), found.view(), losses.defined() ? losses.view() : ConstView{},
                     stream_);
  if (sum_over_model_) sum_over_model_(sums.view(), stream_);
  return sums;
}

kernels::StepRule Optimizer::rule() const {
  kernels::StepRule rule;
  if (scaler_) rule.loss_scale = scaler_->rule();
  rule.skips_not_finite = scaler_ || refuses_not_finite();
  rule.clip_grad = config_.clip_grad;
  return rule;
}

void Optimizer::queue_step(const UpdateRates& rates, const StepOptions& options) {
  invariant(!has_queued_step(), "a step finishes before the next one is queued");
  const TraceRange range("optimizer", stream_);
  const auto decide = [&](Tensor& decision, RangeTables ShareState::*role) {
    const Tensor sums = sums_of(&FlatBuffer::grads, options.losses, role);
    if (options.weight.defined()) {
      kernels::weigh_gradients(decision.view(), options.weight.view(), options.num_microbatches,
                               stream_);
    }
    kernels::decide_step(decision.view(), sums.view(), rule(), stream_);
  };
  decide(state_, &ShareState::norm);
  if (apart_state_.defined()) decide(apart_state_, &ShareState::apart_norm);
  if (host_) {
    update_on_host(rates);
  } else {
    queue_update(rates);
  }
  if (refuses_not_finite()) {
    // Search now: the next iteration overwrites the gradients.
    for (const ShareState& state : states_) {
      const Tensor grads = share_of(&FlatBuffer::grads, state);
      kernels::find_not_finite(state_.view(), grads.view(), ranges_in(state.parameter), stream_);
    }
  }
  if (options.measures_parameters) {
    const Tensor parameter_sums = sums_of(&FlatBuffer::params, {});
    parameter_sums_.start(parameter_sums.view().data, stream_);
  }
  decision_.start(state_.view().data, stream_);
}

StepResult Optimizer::finish_step() {
  kernels::StepState decision;
  std::memcpy(&decision, decision_.wait(), sizeof decision);
  StepResult result;
  if (stream_.is_dry()) return result;  // which decides nothing
  if (parameter_sums_.is_under_way()) {
    std::array<double, kernels::kNumStepSums> sums{};
    std::memcpy(sums.data(), parameter_sums_.wait(), sizeof sums);
    result.parameter_norm = std::sqrt(sums[kernels::kSquares]);
  }
  result.ok = decision.is_skipped == 0;
  if (scaler_) {
    scaler_->update(!result.ok);
    invariant(scaler_->scale() == decision.loss_scale.scale, "device and host agree on the scale");
  }
  if (!result.ok) {
    if (refuses_not_finite()) throw_not_finite(decision.first_not_finite);
    return result;
  }
  for (ParameterGroup& group : groups_) group.step += 1;
  if (config_.clip_grad > 0.0) result.grad_norm = decision.grad_norm;
  if (config_.log_num_zeros_in_grad) result.num_zeros = static_cast<int64_t>(decision.num_zeros);
  return result;
}

StepResult Optimizer::step(const UpdateRates& rates, const StepOptions& options) {
  queue_step(rates, options);
  return finish_step();
}

void Optimizer::throw_not_finite(int64_t first) const {
  const std::string where =
      first == kernels::kAllFinite
          ? "on another rank"
          : "first in " + parameters_.parameters()[static_cast<size_t>(first)].name;
  throw NotFiniteError(
      fmt::format("gradients have infinite or NaN elements, {}; lower --lr or "
                  "resume from an earlier checkpoint "
                  "(--no-check-for-nan-in-loss-and-grad trains on regardless)",
                  where));
}

void Optimizer::queue_update(const UpdateRates& rates) {
  for (ShareState& state : states_) {
    Tensor params = share_of(&FlatBuffer::params, state);
    const Tensor grads = share_of(&FlatBuffer::grads, state);
    update(state, has_main_copy(state) ? params.view() : TensorView{}, grads.view(),
           decision_of(state).view(), rates, stream_);
  }
}

void Optimizer::update_on_host(const UpdateRates& rates) {
  decision_.start(state_.view().data, stream_);
  Tensor decision({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  std::memcpy(decision.view().data, decision_.wait(), kernels::kStepStateBytes);
  kernels::StepState decided;
  std::memcpy(&decided, decision.view().data, sizeof decided);
  if (decided.is_skipped != 0) return;
  const Tensor apart = apart_state_.defined() ? apart_state_.to(Stream{}) : Tensor();
  std::vector<HostUpdate::Piece> pieces;
  for (const ShareState& state : states_) {
    pieces.push_back({share_of(&FlatBuffer::grads, state), share_of(&FlatBuffer::params, state)});
  }
  host_->run(pieces, [&](size_t piece, TensorView params, ConstView grads) {
    const ShareState& state = states_[piece];
    const bool is_apart = parameters_.buffers()[state.buffer].is_clipped_apart;
    update(states_[piece], params, grads, std::as_const(is_apart ? apart : decision).view(), rates,
           state_stream_);
  });
}

void Optimizer::update(ShareState& state, TensorView model, ConstView grad, ConstView decision,
                       const UpdateRates& rates, Stream stream) {
  kernels::GroupRanges ranges = ranges_in(state.update);
  if (state.update_keys.defined()) ranges.keys = std::as_const(state.update_keys).view();
  if (state.rounding.ends.defined()) {
    const auto step = static_cast<uint32_t>(groups_.front().step + 1);
    ranges.rounding = {state.rounding.ends.view(), state.rounding.places.view(), step};
  }
  const TensorView main = state.remainder.defined() ? state.remainder.view() : state.main.view();
  state.rule->update({.model = model,
                      .main = main,
                      .state = state.tensors,
                      .grad = grad,
                      .ranges = ranges,
                      .groups = groups_,
                      .rates = rates,
                      .decision = decision},
                     stream);
}

double Optimizer::parameter_norm() const {
  const Tensor sums = sums_of(&FlatBuffer::params, {}).to(Stream{});
  return std::sqrt(sums.span<double>()[kernels::kSquares]);
}

void Optimizer::visit_state(const StateVisitor& visit) const {
  for (const ShareState& state : states_) {
    const FlatBuffer& buffer = parameters_.buffers()[state.buffer];
    for (const FlatPart& part : parts_in(buffer, state.span)) {
      const int64_t size = part.part.size();
      const auto show = [&](std::string_view name, const Tensor& elements) {
        visit(parameters_.parameters()[buffer.parameters[part.parameter]], name, part.part,
              elements);
      };
      const auto show_part = [&](std::string_view name, const Tensor& flat) {
        if (flat.defined()) show(name, flat.slice(part.begin, size));
      };
      if (state.loaded_main.defined()) {
        show_part("main_param", state.loaded_main);
      } else if (state.remainder.defined()) {
        show("main_param", joined_main(state, part.begin, size));
      } else if (buffer.dtype != DType::kFloat32) {
        show_part("main_param", state.main);
      }
      for (size_t i = 0; i < state.specs.size(); ++i) {
        const StateSpec& spec = state.specs[i];
        const StateMemory& tensor = state.tensors[i];
        const Tensor& loaded = state.loaded[i];
        if (loaded.defined() || !tensor.is_code()) {
          show_part(spec.name, loaded.defined() ? loaded : tensor.elements);
        } else {
          show(spec.name, decoded(tensor.slice(part.begin, size), spec));
        }
      }
    }
  }
}

void Optimizer::visit_memory(const StateVisitor& visit) const {
  constexpr int64_t kBlock = kernels::kMomentBlock;
  for (const ShareState& state : states_) {
    const FlatBuffer& buffer = parameters_.buffers()[state.buffer];
    for (const FlatPart& part : parts_in(buffer, state.span)) {
      const auto& parameter = parameters_.parameters()[buffer.parameters[part.parameter]];
      const auto show = [&](std::string_view name, const Tensor& flat) {
        if (!flat.defined()) return;
        visit(parameter, name, part.part, flat.slice(part.begin, part.part.size()));
      };
      if (has_main_copy(state)) show("main_param", state.main);
      show("main_param", state.remainder);
      for (size_t i = 0; i < state.specs.size(); ++i) {
        const StateMemory& tensor = state.tensors[i];
        show(state.specs[i].name, tensor.elements);
        if (!tensor.exponents.defined()) continue;
        const Tensor of_part = tensor.slice(part.begin, part.part.size()).exponents;
        const int64_t begin = part.part.begin / kBlock;
        visit(parameter, fmt::format("exponents of {}", state.specs[i].name),
              {begin, begin + of_part.numel()}, of_part);
      }
    }
  }
}

OptimizerScalars Optimizer::scalars() const {
  invariant(!has_queued_step(), "scalars need a finished step");
  OptimizerScalars scalars;
  for (const ParameterGroup& group : groups_) scalars.group_steps.push_back(group.step);
  if (scaler_) scalars.loss_scaler = scaler_->state();
  return scalars;
}

void Optimizer::prepare_load() {
  for (ShareState& state : states_) {
    if (state.remainder.defined()) state.loaded_main = joined_main(state, 0, state.span.size());
    for (size_t i = 0; i < state.specs.size(); ++i) {
      if (state.tensors[i].is_code()) {
        state.loaded[i] = decoded(state.tensors[i], state.specs[i]);
      }
    }
  }
}

void Optimizer::keep_loaded(ShareState& state) {
  if (state.loaded_main.defined()) {
    const Tensor params = share_of(&FlatBuffer::params, state);
    kernels::split_main_params(state.remainder.view(), state.loaded_main.view(), params.view(),
                               state_stream_);
  }
  for (size_t i = 0; i < state.specs.size(); ++i) {
    if (!state.loaded[i].defined()) continue;
    kernels::encode_moment(state.tensors[i].moment(), std::as_const(state.loaded[i]).view(),
                           state.specs[i].code(config_), state_stream_);
    state.loaded[i] = Tensor();
  }
  state.loaded_main = Tensor();
}

void Optimizer::load(const OptimizerScalars& scalars) {
  invariant(!has_queued_step(), "an optimizer loads between steps");
  if (scalars.group_steps.size() != groups_.size()) {
    throw ConfigError(fmt::format(
        "the checkpoint's optimizer has {} parameter groups, this model {}; load with the flags "
        "of the saving run, or pass --no-load-optim",
        scalars.group_steps.size(), groups_.size()));
  }
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i].step = scalars.group_steps[i];
  if (scaler_ && scalars.loss_scaler) scaler_->load(*scalars.loss_scaler);
  upload_state();
  for (ShareState& state : states_) keep_loaded(state);
  if (!host_) return;
  for (ShareState& state : states_) {  // checkpoints of an fp32 model have one copy
    if (parameters_.buffers()[state.buffer].dtype != DType::kFloat32) continue;
    copy_into(state.main, share_of(&FlatBuffer::params, state));
  }
}

void Optimizer::reload_main_params() {
  for (ShareState& state : states_) {
    if (state.remainder.defined()) {
      zero_bytes(state.remainder.view().data, state.remainder.bytes(), state_stream_);
    } else if (has_main_copy(state)) {
      copy_into(state.main, share_of(&FlatBuffer::params, state));
    }
  }
}

}  // namespace megatron
