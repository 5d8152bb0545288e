#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/transformer/config.h"

// Well-known models by name, as flags of the command that trains them.
namespace megatron::cli {

// The flags of the model with its usual sequence length and micro-batch size, followed by `more`
// flags. The number of positions equals the sequence length. Throws ConfigError, which lists the
// known names, for an unknown one.
std::vector<std::string> workload_command(const std::string& name,
                                          std::span<const std::string> more);

// The kind of model; throws likewise.
ModelKind workload_kind(const std::string& name);

// "tiny, 124m, ... or t5-large"
std::string workload_names();

}  // namespace megatron::cli
