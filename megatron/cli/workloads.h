#pragma once

#include <span>
#include <string>
#include <vector>

// Well-known models by name, as flags of pretrain-gpt.
namespace megatron::cli {

// The flags of the model with its usual sequence length and micro-batch size, followed by `more`
// flags. There are as many positions as the sequence is long. Throws ConfigError for an unknown
// name and lists the known ones.
std::vector<std::string> workload_command(const std::string& name,
                                          std::span<const std::string> more);

// "tiny, 124m, ... or llama3-8b"
std::string workload_names();

}  // namespace megatron::cli
