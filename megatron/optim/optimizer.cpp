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
#include "megatron/kernels/muon.h"
#include "megatron/kernels/optimizer.h"

namespace megatron {
namespace {

// The group of every parameter, parallel to the parameters.
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

// Writes the sum of squares and the number of zeros of each group of `flat` to `found` [groups, 2].
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

// Codes of moments in fp16: clipping bounds gradients, so 2^15 is beyond all (moment_code.h).
double fp16_scale(const OptimizerConfig& config) {
  return config.clip_grad > 0.0 ? std::exp2(15 - std::ceil(std::log2(config.clip_grad))) : 1.0;
}

kernels::MomentCode code_of(const OptimizerConfig& config, bool is_second) {
  return {.scale = static_cast<float>(fp16_scale(config)), .is_root = is_second};
}

// The values of the group's next update.
kernels::AdamNumbers adam_numbers(const ParameterGroup& group, const UpdateRates& rates,
                                  const OptimizerConfig& config) {
  const auto step = static_cast<double>(group.step + 1);
  return {.lr = learning_rate(group, rates),
          .beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .eps = config.adam_eps,
          .weight_decay = rates.weight_decay * group.wd_mult,
          .bias_correction1 = 1.0 - std::pow(config.adam_beta1, step),
          .bias_correction2 = 1.0 - std::pow(config.adam_beta2, step),
          .fp16_scale = fp16_scale(config),
          .rounding_seed = static_cast<uint32_t>(group.step + 1) * 0x9e3779b9u};
}

kernels::SgdNumbers sgd_numbers(const ParameterGroup& group, const UpdateRates& rates,
                                const OptimizerConfig& config) {
  return {.lr = learning_rate(group, rates),
          .momentum = config.sgd_momentum,
          .weight_decay = rates.weight_decay * group.wd_mult};
}

// The stream of all parameters, which are on one device.
Stream stream_of(const FlatParameters& parameters) {
  return parameters.buffers().empty() ? Stream{} : parameters.buffers().front().params.stream();
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
                     SumOverModel sum_over_model, comm::Group shares)
    : parameters_(parameters),
      config_(config),
      sum_over_model_(std::move(sum_over_model)),
      shares_(std::move(shares)),
      scaler_(make_loss_scaler(config)),
      groups_(parameter_groups(parameters.parameters())),
      stream_(stream_of(parameters)),
      state_stream_(config.optimizer_cpu_offload ? Stream{} : stream_),
      state_({kernels::kStepStateBytes}, DType::kUInt8, stream_),
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
    host_.emplace(most, stream_);
  }
  upload_state();
}

void Optimizer::upload_state() {
  kernels::StepState state;
  if (scaler_) state.loss_scale = scaler_->state();
  upload_bytes(state_.view().data, &state, kernels::kStepStateBytes, stream_);
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

Tensor Optimizer::decoded_moment(const MomentTensors& codes, bool is_second) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  Tensor moment(codes.elements.shape(), DType::kFloat32, state_stream_);
  kernels::decode_moment(moment.view(), codes.moment(), code_of(config_, is_second), state_stream_);
  return moment;
}

Optimizer::MomentTensors::MomentTensors(int64_t size, DType dtype, Stream stream) {
  if (dtype == DType::kFloat8E4M3) {
    elements = zeros({size}, dtype, stream);
    exponents =
        zeros({(size + kernels::kMomentBlock - 1) / kernels::kMomentBlock}, DType::kUInt8, stream);
  } else {
    elements = full({size}, 0, dtype, stream);  // uses all threads: there may be many gigabytes
  }
}

Optimizer::MomentTensors Optimizer::MomentTensors::slice(int64_t begin, int64_t size) const {
  constexpr int64_t kBlock = kernels::kMomentBlock;
  MomentTensors part;
  part.elements = elements.slice(begin, size);
  if (exponents.defined()) {
    part.exponents = exponents.slice(begin / kBlock, (size + kBlock - 1) / kBlock);
  }
  return part;
}

bool Optimizer::MomentTensors::is_code() const {
  return elements.defined() && (elements.dtype() == DType::kFloat16 || exponents.defined());
}

kernels::Moment Optimizer::MomentTensors::moment() const {
  Tensor of = elements;  // the same memory
  Tensor blocks = exponents;
  return {of.view(), blocks.defined() ? blocks.view() : TensorView{}};
}

bool Optimizer::has_adam(const FlatBuffer& buffer) const {
  return config_.optimizer == OptimizerKind::kAdam ||
         (config_.optimizer == OptimizerKind::kMuon && !has_muon(buffer));
}

bool Optimizer::has_muon(const FlatBuffer& buffer) const {
  return config_.optimizer == OptimizerKind::kMuon && buffer.has_matrices;
}

bool Optimizer::has_main_copy(const ShareState& state) const {
  return parameters_.buffers()[state.buffer].dtype != DType::kFloat32 ||
         config_.optimizer_cpu_offload;
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
  if (keeps_remainders(config_, buffer.dtype) && !has_muon(buffer)) {
    state.remainder = zeros({span.size()}, DType::kInt16, state_stream_);
  } else {
    state.main = has_main_copy(state) ? cast(params, DType::kFloat32).to(state_stream_) : params;
  }
  if (has_adam(buffer)) {
    state.exp_avg = MomentTensors(span.size(), config_.exp_avg_dtype, state_stream_);
    state.exp_avg_sq = MomentTensors(span.size(), config_.exp_avg_sq_dtype, state_stream_);
  } else {
    state.momentum_buffer = full({span.size()}, 0, DType::kFloat32, state_stream_);
    if (has_muon(buffer)) add_matrices(state);
  }

  const std::vector<OptimizedParameter>& all = parameters_.parameters();
  const std::vector<int32_t> group_of = group_of_parameter(groups_, all.size());
  std::vector<int32_t> update_groups;
  std::vector<int32_t> norm_groups;
  std::vector<int32_t> positions;
  for (const size_t parameter : buffer.parameters) {
    update_groups.push_back(group_of[parameter]);
    norm_groups.push_back(all[parameter].counts_in_norm ? kernels::kCountedInNorm
                                                        : kernels::kNotCountedInNorm);
    positions.push_back(static_cast<int32_t>(parameter));
  }
  // Padding is zero in gradients and state, so an update leaves it zero.
  const auto tables = [&](const FlatRanges& ranges, Stream stream) {
    return range_tables(cut_to(ranges, span), stream);
  };
  state.update = tables(ranges_of(buffer.layout, update_groups), state_stream_);
  if (state.exp_avg.exponents.defined() || state.exp_avg_sq.exponents.defined()) {
    add_keys(state, update_groups);
  }
  state.norm = tables(ranges_of(buffer.layout, norm_groups, kernels::kPaddingInNorm), stream_);
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

void Optimizer::add_matrices(ShareState& state) const {
  const FlatBuffer& buffer = parameters_.buffers()[state.buffer];
  FlatSpan bucket = {0, buffer.layout.numel};
  if (shares_.size() > 1) {
    const FlatBucket& one = buffer.layout.buckets[state.share];
    bucket = {one.begin, one.end};
  }
  invariant(state.span.size() * shares_.size() == bucket.size(), "each rank has a share");
  std::vector<SharedMatrix> matrices;
  for (MuonMatrix& matrix :
       muon_matrices(buffer, parameters_.parameters(), config_.muon_split_qkv, stream_)) {
    if (matrix.span.begin < bucket.begin || matrix.span.begin >= bucket.end) continue;
    matrices.push_back({matrix.span, matrix.flops(config_.muon_num_ns_steps)});
    state.matrices.push_back(std::move(matrix));
  }
  state.shared.emplace(std::move(matrices), bucket, shares_, stream_);
}

Tensor Optimizer::loss_seed(int64_t num_microbatches) const {
  Tensor seed({}, DType::kFloat32, stream_);
  kernels::loss_seed(seed.view(), state_.view(), num_microbatches, stream_);
  return seed;
}

Tensor Optimizer::sums_of(Tensor FlatBuffer::*flat, const Tensor& losses) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const auto count = static_cast<int64_t>(states_.size());
  const Tensor found({count, kernels::kNumNormGroups, 2}, DType::kFloat64, stream_);
  for (int64_t i = 0; i < count; ++i) {
    const ShareState& state = states_[static_cast<size_t>(i)];
    measure(found.slice(i, 1).reshape({kernels::kNumNormGroups, 2}), share_of(flat, state),
            state.norm);
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
  const Tensor sums = sums_of(&FlatBuffer::grads, options.losses);
  if (options.weight.defined()) {
    kernels::weigh_gradients(state_.view(), options.weight.view(), options.num_microbatches,
                             stream_);
  }
  kernels::decide_step(state_.view(), sums.view(), rule(), stream_);
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
    if (state.shared) {
      update_matrices(state, params, grads, rates);
      continue;
    }
    update(state, has_main_copy(state) ? params.view() : TensorView{}, grads.view(), state_.view(),
           rates, stream_);
  }
}

void Optimizer::update_on_host(const UpdateRates& rates) {
  decision_.start(state_.view().data, stream_);
  Tensor decision({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  std::memcpy(decision.view().data, decision_.wait(), kernels::kStepStateBytes);
  kernels::StepState decided;
  std::memcpy(&decided, decision.view().data, sizeof decided);
  if (decided.is_skipped != 0) return;
  std::vector<HostUpdate::Piece> pieces;
  for (const ShareState& state : states_) {
    pieces.push_back({share_of(&FlatBuffer::grads, state), share_of(&FlatBuffer::params, state)});
  }
  host_->run(pieces, [&](size_t piece, TensorView params, ConstView grads) {
    update(states_[piece], params, grads, decision.view(), rates, Stream{});
  });
}

void Optimizer::update_matrices(const ShareState& state, Tensor params, const Tensor& grads,
                                const UpdateRates& rates) {
  const std::vector<int32_t> group_of =
      group_of_parameter(groups_, parameters_.parameters().size());
  // A piece of a matrix in one of the share's tensors.
  const auto in = [&](const Tensor& flat, size_t matrix, const FlatSpan& piece) {
    const int64_t begin = state.matrices[matrix].span.begin + piece.begin - state.span.begin;
    return flat.slice(begin, piece.size());
  };
  state.shared->run(
      [&](size_t matrix, const FlatSpan& piece, Tensor direction) {
        Tensor momentum = in(state.momentum_buffer, matrix, piece);
        const Tensor grad = in(grads, matrix, piece);
        kernels::muon_momentum(direction.view(), momentum.view(), grad.view(),
                               config_.muon_momentum, config_.muon_use_nesterov, state_.view(),
                               stream_);
      },
      [&](size_t matrix, const Tensor& direction) {
        make_orthogonal(state.matrices[matrix], direction, config_);
      },
      [&](size_t matrix, const FlatSpan& piece, const Tensor& direction) {
        const size_t parameter = state.matrices[matrix].parameter;
        const ParameterGroup& group = groups_[static_cast<size_t>(group_of[parameter])];
        Tensor model = in(params, matrix, piece);
        Tensor main = in(state.main, matrix, piece);
        kernels::muon_update(has_main_copy(state) ? model.view() : TensorView{}, main.view(),
                             direction.view(), learning_rate(group, rates),
                             rates.weight_decay * group.wd_mult, state_.view(), stream_);
      });
}

void Optimizer::update(ShareState& state, TensorView model, ConstView grad, ConstView decision,
                       const UpdateRates& rates, Stream stream) {
  kernels::GroupRanges ranges = ranges_in(state.update);
  if (state.update_keys.defined()) ranges.keys = std::as_const(state.update_keys).view();
  const TensorView main = state.remainder.defined() ? state.remainder.view() : state.main.view();
  if (has_adam(parameters_.buffers()[state.buffer])) {
    const auto numbers = numbers_of<kernels::AdamNumbers>(
        groups_, [&](const ParameterGroup& g) { return adam_numbers(g, rates, config_); });
    kernels::adam(model, main, state.exp_avg.moment(), state.exp_avg_sq.moment(), grad, ranges,
                  numbers, decision, stream);
  } else {
    const auto numbers = numbers_of<kernels::SgdNumbers>(
        groups_, [&](const ParameterGroup& g) { return sgd_numbers(g, rates, config_); });
    kernels::sgd_momentum(model, main, state.momentum_buffer.view(), grad, ranges, numbers,
                          decision, stream);
  }
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
      const auto show_moment = [&](std::string_view name, const MomentTensors& moment,
                                   const Tensor& loaded, bool is_second) {
        if (loaded.defined() || !moment.is_code()) {
          show_part(name, loaded.defined() ? loaded : moment.elements);
        } else {
          show(name, decoded_moment(moment.slice(part.begin, size), is_second));
        }
      };
      if (state.loaded_main.defined()) {
        show_part("main_param", state.loaded_main);
      } else if (state.remainder.defined()) {
        show("main_param", joined_main(state, part.begin, size));
      } else if (buffer.dtype != DType::kFloat32) {
        show_part("main_param", state.main);
      }
      show_moment("exp_avg", state.exp_avg, state.loaded_exp_avg, false);
      show_moment("exp_avg_sq", state.exp_avg_sq, state.loaded_exp_avg_sq, true);
      show_part("momentum_buffer", state.momentum_buffer);
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
      const auto show_moment = [&](std::string_view name, std::string_view exponents,
                                   const MomentTensors& moment) {
        show(name, moment.elements);
        if (!moment.exponents.defined()) return;
        const Tensor of_part = moment.slice(part.begin, part.part.size()).exponents;
        const int64_t begin = part.part.begin / kBlock;
        visit(parameter, exponents, {begin, begin + of_part.numel()}, of_part);
      };
      if (has_main_copy(state)) show("main_param", state.main);
      show("main_param", state.remainder);
      show_moment("exp_avg", "exponents of exp_avg", state.exp_avg);
      show_moment("exp_avg_sq", "exponents of exp_avg_sq", state.exp_avg_sq);
      show("momentum_buffer", state.momentum_buffer);
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
    if (state.exp_avg.is_code()) state.loaded_exp_avg = decoded_moment(state.exp_avg, false);
    if (state.exp_avg_sq.is_code()) {
      state.loaded_exp_avg_sq = decoded_moment(state.exp_avg_sq, true);
    }
  }
}

void Optimizer::keep_loaded(ShareState& state) {
  if (state.loaded_main.defined()) {
    const Tensor params = share_of(&FlatBuffer::params, state);
    kernels::split_main_params(state.remainder.view(), state.loaded_main.view(), params.view(),
                               state_stream_);
  }
  const auto encode = [&](const MomentTensors& codes, const Tensor& loaded, bool is_second) {
    if (!loaded.defined()) return;
    kernels::encode_moment(codes.moment(), loaded.view(), code_of(config_, is_second),
                           state_stream_);
  };
  encode(state.exp_avg, state.loaded_exp_avg, false);
  encode(state.exp_avg_sq, state.loaded_exp_avg_sq, true);
  state.loaded_main = state.loaded_exp_avg = state.loaded_exp_avg_sq = Tensor();
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
