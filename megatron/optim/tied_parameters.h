#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {

// A parameter that several pipeline stages have.
struct TiedParameter {
  std::string name;
  Variable variable;
  comm::Group stages;  // those that have it
};

// The tied parameters of this stage, in an order that is the same on every stage. The stages
// exchange the names of their tied parameters to find the stages of each. Every stage of the
// pipeline calls it.
std::vector<TiedParameter> tied_parameters(std::span<const OptimizedParameter> parameters,
                                           const comm::Group& pipeline);

}  // namespace megatron
