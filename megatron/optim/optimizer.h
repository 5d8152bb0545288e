#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/readback.h"
#include "megatron/kernels/optimizer_step.h"
#include "megatron/optim/config.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/parameter_scheduler.h"

namespace megatron {

// Parameters that share a learning rate and a weight decay, and a count of updates. Groups are
// ordered: with weight decay before without, lr_mult 1 before others; empty ones do not exist.
struct ParameterGroup {
  double wd_mult = 1.0;  // 1: decayed; 0: not
  double lr_mult = 1.0;
  bool has_decoupled_lr = false;
  int64_t step = 0;                // updates so far; skipped iterations do not count
  std::vector<size_t> parameters;  // positions in FlatParameters::parameters(), rising
};
std::vector<ParameterGroup> parameter_groups(std::span<const OptimizedParameter> parameters);

struct StepResult {
  bool ok = false;  // false: a gradient overflowed under the loss scale; nothing was updated
  std::optional<double> grad_norm;       // before clipping; none when skipped or clip_grad is 0
  std::optional<int64_t> num_zeros;      // zero elements of the gradients, when asked for
  std::optional<double> parameter_norm;  // after the update, when asked for
};

// What a step looks at besides the gradients.
struct StepOptions {
  Tensor losses = {};  // fp32: if one of them is not a number nothing is updated; may be undefined
  bool measures_parameters = false;  // StepResult::parameter_norm
};

// Gradients hold infinite or not-a-number elements and nothing may ignore it.
class NotFiniteError : public Error {
 public:
  using Error::Error;
};

// What a checkpoint stores besides tensors.
struct OptimizerScalars {
  std::vector<int64_t> group_steps;  // by group
  std::optional<LossScalerState> loss_scaler;
};

// The state of one parameter, or the part of it that this rank updates, under the names of
// Megatron's checkpoints: main_param (16-bit models only), exp_avg and exp_avg_sq, or
// momentum_buffer. `part` are elements of the parameter in row-major order; `tensor` [part.size()]
// is fp32 and shares the optimizer's memory: reading saves, writing loads.
using StateVisitor = std::function<void(const OptimizedParameter& parameter, std::string_view state,
                                        const FlatSpan& part, Tensor tensor)>;

// Sums each number (fp64) over the ranks that hold parts of the same model: in place, in the order
// of the stream's work. Empty: this rank has it all.
using SumOverModel = std::function<void(TensorView numbers, Stream stream)>;

// Keeps fp32 main parameters and the state of Adam or SGD for every parameter, and turns the main
// gradients of an iteration into one update.
//
// What decides about an update (norm, overflow, clip coefficient, loss scale) stays on the device,
// so that the host can queue the next iteration while this one runs. It learns of it when
// finish_step() is called, just before the next update at the latest: only then does it know how
// many updates there were, on which bias corrections and schedules depend. By then the device is
// busy with the next forward pass, so the wait costs nothing and nothing is a guess.
class Optimizer {
 public:
  // `parameters` must outlive the optimizer.
  Optimizer(FlatParameters& parameters, const OptimizerConfig& config,
            SumOverModel sum_over_model = nullptr);

  // What the loss is multiplied by before backward; 1 without a scaler. After a queued step: the
  // scale that its gradients had.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // fp32 [], on the device: loss scale / num_microbatches, the gradient of each microbatch's loss.
  // Right also while a step is queued.
  Tensor loss_seed(int64_t num_microbatches) const;

  // Queues one update with the gradients as they are: of the scaled loss, summed over data-parallel
  // ranks. Two passes over memory: one measures the gradients, one unscales, clips, updates and
  // rounds into the model. Does not wait for the device.
  // REQUIRES: the step before is finished.
  void queue_step(const UpdateRates& rates, const StepOptions& options = {});
  // What the queued step did; waits for it. Throws NotFiniteError when a gradient is not finite, no
  // scaler could have caused it, and check_for_nan_in_loss_and_grad is on; the model is as it was.
  StepResult finish_step();
  bool has_queued_step() const { return decision_.is_under_way(); }
  // Both at once.
  StepResult step(const UpdateRates& rates, const StepOptions& options = {});

  // sqrt of the sum of squares of the parameters, counted as gradients are. Waits.
  double parameter_norm() const;

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  void visit_state(const StateVisitor& visit) const;
  // Of the state after the last finished step. REQUIRES: no step is queued.
  OptimizerScalars scalars() const;
  // Throws ConfigError when the number of groups is not ours.
  void load(const OptimizerScalars& scalars);
  // After the model's weights were loaded without the optimizer's state.
  void reload_main_params();

 private:
  // What belongs to one share of a FlatBuffer. fp32 but for the tables of ranges.
  struct ShareState {
    size_t buffer = 0;  // position in FlatParameters::buffers()
    FlatSpan span;
    Tensor main;  // for fp32 parameters the parameters themselves
    Tensor exp_avg;
    Tensor exp_avg_sq;
    Tensor momentum_buffer;
    RangeTables update;     // ranges by parameter group
    RangeTables norm;       // ranges by what the norm counts
    RangeTables parameter;  // ranges by position in FlatParameters::parameters()
  };

  ShareState make_state(size_t buffer, const FlatSpan& span) const;
  Tensor share_of(Tensor FlatBuffer::*flat, const ShareState& state) const;
  // Sums of one flat tensor per buffer over the ranks of the model, [kernels::kNumStepSums].
  Tensor sums_of(Tensor FlatBuffer::*flat, const Tensor& losses) const;
  // A gradient that is not finite is an error: no scaler could have caused it.
  bool refuses_not_finite() const { return !scaler_ && config_.check_for_nan_in_loss_and_grad; }
  kernels::StepRule rule() const;
  void upload_state();
  void queue_update(const UpdateRates& rates);
  [[noreturn]] void throw_not_finite(int64_t first) const;

  FlatParameters& parameters_;
  OptimizerConfig config_;
  SumOverModel sum_over_model_;
  std::optional<LossScaler> scaler_;
  std::vector<ParameterGroup> groups_;
  Stream stream_;
  std::vector<ShareState> states_;
  Tensor state_;       // a kernels::StepState on the device
  Readback decision_;  // of state_
  Readback parameter_sums_;
};

}  // namespace megatron
