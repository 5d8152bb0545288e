#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/parameter_scheduler.h"

namespace megatron {

// Parameters with one learning rate and weight decay, and their number of updates. Groups with
// weight decay come before those without, lr_mult 1 before others; there are no empty groups.
struct ParameterGroup {
  double wd_mult = 1.0;  // 1: weight decay; 0: none
  double lr_mult = 1.0;
  bool has_decoupled_lr = false;
  int64_t step = 0;                // updates so far; skipped iterations do not count
  std::vector<size_t> parameters;  // positions in FlatParameters::parameters(), rising

  double learning_rate(const UpdateRates& rates) const {
    return (has_decoupled_lr ? rates.decoupled_lr : rates.lr) * lr_mult;
  }
  double weight_decay(const UpdateRates& rates) const { return rates.weight_decay * wd_mult; }
};
std::vector<ParameterGroup> parameter_groups(std::span<const OptimizedParameter> parameters);

// The group of every parameter, parallel to the parameters.
std::vector<int32_t> group_of_parameter(std::span<const ParameterGroup> groups, size_t count);

}  // namespace megatron
