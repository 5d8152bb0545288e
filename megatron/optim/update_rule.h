#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megatron/optim/parameter_group.h"
#include "megatron/optim/state_memory.h"

namespace megatron {

// The [n] elements of one update.
struct RuleInput {
  TensorView model;                    // out: main, rounded; null if main is the model's own
  TensorView main;                     // io: fp32, or int16 remainders (kernels/main_param.h)
  std::span<const StateMemory> state;  // io: parallel to UpdateRule::state()
  ConstView grad;                      // of the scaled loss
  kernels::GroupRanges ranges;         // by position in `groups`
  std::span<const ParameterGroup> groups;
  UpdateRates rates;
  ConstView decision;  // a kernels::StepState
};

// An update rule: computes the step of the parameters from their gradients. A rule is a class in a
// file of its own, and a value of OptimizerKind; everything else (checkpoints, comparisons of
// ranks, plans) follows from state().
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<StateSpec> state() const = 0;
  // True if main parameters of bf16 ones may be kept as the 16 bits that bf16 lacks.
  virtual bool takes_remainders() const { return true; }
  // Queues one update, which leaves everything as it is if the decision is to skip.
  virtual void update(const RuleInput& in, Stream stream) const = 0;
};

std::unique_ptr<UpdateRule> make_adam_rule(const OptimizerConfig& config);
std::unique_ptr<UpdateRule> make_sgd_rule(const OptimizerConfig& config);
std::unique_ptr<UpdateRule> make_lion_rule(const OptimizerConfig& config);

// A rank's share of a buffer of matrices; Muon updates whole matrices.
struct MatrixShare {
  const FlatBuffer& buffer;
  const std::vector<OptimizedParameter>& parameters;
  std::span<const ParameterGroup> groups;
  FlatSpan bucket;  // whose matrices
  FlatSpan span;    // of the buffer: this rank's elements
};
std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, const MatrixShare& share,
                                           Stream stream);

// The states of element-wise rules: for all parameters, or with Muon for those that are not
// matrices of layers.
std::unique_ptr<UpdateRule> make_element_rule(const OptimizerConfig& config);

// One value for each group.
template <class Numbers, class F>
std::vector<Numbers> numbers_of(std::span<const ParameterGroup> groups, const F& make) {
  std::vector<Numbers> numbers;
  for (const ParameterGroup& group : groups) numbers.push_back(make(group));
  return numbers;
}

}  // namespace megatron
