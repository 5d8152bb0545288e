#pragma once

#include <string>
#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

namespace megatron {

// Completes the settings of experts: their width, and a number for each layer.
void resolve_experts(TransformerConfig& config);

// Everything wrong with the experts of a resolved config, one sentence each.
std::vector<std::string> expert_problems(const TransformerConfig& config);

// Everything wrong with the division of experts among ranks, one sentence each.
std::vector<std::string> expert_layout_problems(const ExpertConfig& config,
                                                const ParallelConfig& parallel);

}  // namespace megatron
