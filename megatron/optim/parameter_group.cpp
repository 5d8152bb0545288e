#include "megatron/optim/parameter_group.h"

#include <algorithm>
#include <tuple>

namespace megatron {

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

std::vector<int32_t> group_of_parameter(std::span<const ParameterGroup> groups, size_t count) {
  std::vector<int32_t> group_of(count);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const size_t parameter : groups[g].parameters) {
      group_of[parameter] = static_cast<int32_t>(g);
    }
  }
  return group_of;
}

}  // namespace megatron
