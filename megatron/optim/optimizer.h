#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  std::optional<double> grad_norm;   // before clipping; none when skipped or clip_grad is 0
  std::optional<int64_t> num_zeros;  // zero elements of the gradients, when asked for
};

// What a checkpoint stores besides tensors.
struct OptimizerScalars {
  std::vector<int64_t> group_steps;  // by group
  std::optional<LossScalerState> loss_scaler;
};

// The state of one parameter under the names of Megatron's checkpoints: main_param (16-bit models
// only), exp_avg and exp_avg_sq, or momentum_buffer. `tensor` is fp32, has the parameter's shape
// and shares the optimizer's memory: reading saves, writing loads.
using StateVisitor =
    std::function<void(const std::string& parameter, std::string_view state, Tensor tensor)>;

// Sums each number over the ranks that hold parts of the same model. Empty: this rank has it all.
using SumOverModel = std::function<void(std::span<double> numbers)>;

// Keeps fp32 main parameters and the state of Adam or SGD for every parameter, and turns the main
// gradients of an iteration into one update.
class Optimizer {
 public:
  // `parameters` must outlive the optimizer.
  Optimizer(FlatParameters& parameters, const OptimizerConfig& config,
            SumOverModel sum_over_model = nullptr);

  // What the loss is multiplied by before backward; 1 without a scaler.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }

  // One update with the gradients as they are: of the scaled loss, summed over data-parallel ranks.
  // Two passes over memory: one measures the gradients, one unscales, clips, updates and rounds
  // into the model. Throws Error when a gradient is not finite, no scaler could have caused it, and
  // check_for_nan_in_loss_and_grad is on.
  StepResult step(const UpdateRates& rates);

  // sqrt of the sum of squares of the parameters, counted as gradients are.
  double parameter_norm() const;

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  void visit_state(const StateVisitor& visit) const;
  OptimizerScalars scalars() const;
  // Throws ConfigError when the number of groups is not ours.
  void load(const OptimizerScalars& scalars);
  // After the model's weights were loaded without the optimizer's state.
  void reload_main_params();

 private:
  // What belongs to one FlatBuffer. fp32 but for the tables of ranges.
  struct BufferState {
    Tensor main;  // for fp32 parameters the parameters themselves
    Tensor exp_avg;
    Tensor exp_avg_sq;
    Tensor momentum_buffer;
    RangeTables update;  // ranges by parameter group
    RangeTables norm;    // ranges by what the norm counts
  };
  struct Measures {
    double counted_squares = 0.0;
    double counted_zeros = 0.0;
    double all_squares = 0.0;
  };

  BufferState make_state(const FlatBuffer& buffer) const;
  // Of one flat tensor per buffer, on this rank.
  Measures measured(Tensor FlatBuffer::*flat) const;
  // The first parameter, in the order of registration, whose gradient is not finite on this rank.
  std::optional<size_t> first_not_finite() const;
  [[noreturn]] void throw_not_finite() const;
  void update(const UpdateRates& rates, double grad_scale);

  FlatParameters& parameters_;
  OptimizerConfig config_;
  SumOverModel sum_over_model_;
  std::optional<LossScaler> scaler_;
  std::vector<ParameterGroup> groups_;
  std::vector<BufferState> states_;  // parallel to parameters_.buffers()
};

}  // namespace megatron
