#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/readback.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/optimizer_step.h"
#include "megatron/optim/config.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/host_update.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/parameter_group.h"
#include "megatron/optim/rounding_tables.h"
#include "megatron/optim/update_rule.h"

namespace megatron {

struct StepResult {
  bool ok = false;  // false: a gradient overflowed under the loss scale; nothing was updated
  std::optional<double> grad_norm;       // before clipping; none if skipped or clip_grad is 0
  std::optional<int64_t> num_zeros;      // zero elements of the gradients, if requested
  std::optional<double> parameter_norm;  // after the update, if requested
};

// Inputs of a step besides the gradients.
struct StepOptions {
  Tensor losses = {};  // fp32: if one of them is NaN nothing is updated; may be undefined
  bool measures_parameters = false;  // requests StepResult::parameter_norm
  // [1] fp32: the sum of the weights of `num_microbatches` microbatches, whose gradients were
  // summed up as if each were 1 (kernels::weigh_gradients); undefined: they are.
  Tensor weight = {};
  int64_t num_microbatches = 0;
};

// Gradients are infinite or NaN, and neither a loss scaler nor a flag allows that.
class NotFiniteError : public Error {
 public:
  using Error::Error;
};

// The optimizer's part of a checkpoint besides tensors.
struct OptimizerScalars {
  std::vector<int64_t> group_steps;  // by group
  std::optional<LossScalerState> loss_scaler;
};

// Visits the state of one parameter, or the part that this rank updates, under the names of
// Megatron's checkpoints: main_param (16-bit models only), and those of the
// update rule (exp_avg, exp_avg_sq, momentum_buffer). `part` is the range of the parameter's
// elements in row-major order; `tensor` [part.size()] is fp32, or bf16 if the state is, and shares
// the optimizer's memory: saving reads it, loading writes it. Remainders of main parameters and
// moments in fp16 and fp8 show as fp32 copies, which loading writes after prepare_load().
using StateVisitor = std::function<void(const OptimizedParameter& parameter, std::string_view state,
                                        const FlatSpan& part, Tensor tensor)>;

// Sums each number (fp64) over the ranks with parts of the same model, in place, in the order of
// the stream's work. Empty if this rank has the whole model.
using SumOverModel = std::function<void(TensorView numbers, Stream stream)>;

// Keeps fp32 main parameters and the state of an update rule for every parameter, and turns the
// main gradients of an iteration into one update. With use_precision_aware_optimizer moments may
// have 16 or 8 bits. The main parameters of bf16 ones are kept as the 16 bits that those lack, or
// with main_params_dtype bf16 are the parameters themselves, to which updates round at random.
//
// The numbers that decide about an update (norm, overflow, clip coefficient, loss scale) stay on
// the device, so that the host can queue the next iteration while this one runs. The host reads
// them in finish_step(), at the latest before the next update, whose bias corrections and schedules
// depend on the number of updates. By then the device is busy with the next forward pass, so the
// wait costs nothing.
//
// With optimizer_cpu_offload the main parameters and the state are in host memory, and the host
// computes the update, so that queue_step() waits for the gradients.
class Optimizer {
 public:
  // `parameters` must outlive the optimizer.
  Optimizer(FlatParameters& parameters, const OptimizerConfig& config,
            SumOverModel sum_over_model = nullptr);

  // The factor of the loss before backward; 1 without a scaler. With a queued step: the factor of
  // its gradients.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // The gradient of each microbatch's loss: loss scale / num_microbatches, fp32 [] on the device.
  // Also correct while a step is queued.
  Tensor loss_seed(int64_t num_microbatches) const;

  // Queues one update with the current gradients, which are those of the scaled loss, summed over
  // data-parallel ranks. Two passes over memory: the first measures the gradients; the second
  // unscales, clips, updates and rounds into the model. Does not wait for the device.
  // REQUIRES: the previous step is finished.
  void queue_step(const UpdateRates& rates, const StepOptions& options = {});
  // Waits for the queued step and returns its result. Throws NotFiniteError, and leaves the model
  // unchanged, if a gradient is not finite, there is no scaler that could have caused it, and
  // check_for_nan_in_loss_and_grad is on.
  StepResult finish_step();
  bool has_queued_step() const { return decision_.is_under_way(); }
  // queue_step() and finish_step().
  StepResult step(const UpdateRates& rates, const StepOptions& options = {});

  // The L2 norm of the parameters, counted like the gradients. Waits for the device.
  double parameter_norm() const;

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  void visit_state(const StateVisitor& visit) const;
  // The same memory in its stored form, without tensors that belong to the model: codes of moments,
  // their exponents (one per kernels::kMomentBlock elements), remainders of main parameters. For
  // comparing ranks.
  void visit_memory(const StateVisitor& visit) const;
  // The scalars after the last finished step. REQUIRES: no step is queued.
  OptimizerScalars scalars() const;
  // Loading: prepare_load(), the tensors that visit_state() shows, and load(). Until then
  // remainders are whole fp32 main parameters. The model's parameters are loaded before.
  void prepare_load();
  // Throws ConfigError if the number of groups differs.
  void load(const OptimizerScalars& scalars);
  // Call after loading the model's weights without the optimizer's state.
  void reload_main_params();

 private:
  // The state of one share of a FlatBuffer, or of a piece of it if the host computes.
  struct ShareState {
    size_t buffer = 0;  // position in FlatParameters::buffers()
    size_t share = 0;   // position in FlatBuffer::shares
    FlatSpan span;      // of the buffer
    Tensor main;       // main_dtype(); the parameters themselves if they are of it and on this side
    Tensor remainder;  // or int16 instead of `main`: what it has beyond bf16 parameters
    std::unique_ptr<UpdateRule> rule;
    std::vector<StateSpec> specs;      // of the rule
    std::vector<StateMemory> tensors;  // parallel to `specs`
    // From prepare_load() to load(): fp32 copies of tensors in other formats; else undefined.
    Tensor loaded_main;
    std::vector<Tensor> loaded;  // parallel to `specs`
    RangeTables update;          // ranges by parameter group
    Tensor update_keys;          // of these ranges, with moments in fp8
    RoundingTables rounding;     // of main parameters in bf16
    RangeTables norm;            // ranges by their role in the norm
    RangeTables apart_norm;      // the same of parameters that are clipped apart
    RangeTables parameter;       // ranges by position in FlatParameters::parameters()
  };

  ShareState make_state(size_t buffer, size_t share, const FlatSpan& span) const;
  std::unique_ptr<UpdateRule> make_rule(size_t buffer, size_t share, const FlatSpan& span) const;
  // Makes the tables of an update with moments in fp8; groups by number in the buffer.
  void add_keys(ShareState& state, std::span<const int32_t> groups) const;
  // True if main parameters are a copy, which an update rounds or copies into the model.
  bool has_main_copy(const ShareState& state) const;
  Tensor share_of(Tensor FlatBuffer::*flat, const ShareState& state) const;
  // Elements [begin, begin + size) of a share's remainders, joined with the parameters.
  Tensor joined_main(const ShareState& state, int64_t begin, int64_t size) const;
  // The decoded values of codes.
  Tensor decoded(const StateMemory& codes, const StateSpec& spec) const;
  // Ends prepare_load(): the loaded tensors become remainders and codes.
  void keep_loaded(ShareState& state);
  // Sums of one flat tensor per buffer over the ranks of the model, [kernels::kNumStepSums], of the
  // ranges of a role.
  Tensor sums_of(Tensor FlatBuffer::*flat, const Tensor& losses,
                 RangeTables ShareState::*role = &ShareState::norm) const;
  // The decision about a share.
  const Tensor& decision_of(const ShareState& state) const;
  // True if a gradient that is not finite is an error: no scaler could have caused it.
  bool refuses_not_finite() const { return !scaler_ && config_.check_for_nan_in_loss_and_grad; }
  kernels::StepRule rule() const;
  void upload_state();
  void queue_update(const UpdateRates& rates);
  // Waits for the decision, and updates on the host.
  void update_on_host(const UpdateRates& rates);
  void update(ShareState& state, TensorView model, ConstView grad, ConstView decision,
              const UpdateRates& rates, Stream stream);
  [[noreturn]] void throw_not_finite(int64_t first) const;

  FlatParameters& parameters_;
  OptimizerConfig config_;
  SumOverModel sum_over_model_;
  std::optional<LossScaler> scaler_;
  std::vector<ParameterGroup> groups_;
  Stream stream_;
  Stream state_stream_;             // of the state: stream_, or the host's
  std::optional<HostUpdate> host_;  // with optimizer_cpu_offload
  std::vector<ShareState> states_;
  Tensor state_;        // a kernels::StepState on the device
  Tensor apart_state_;  // the same of parameters that are clipped apart; undefined: there are none
  Readback decision_;   // of state_
  Readback parameter_sums_;
};

}  // namespace megatron
