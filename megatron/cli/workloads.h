#pragma once

#include <span>
#include <string>
#include <vector>

// Models that people compare, by name, as flags of pretrain-gpt.
namespace megatron::cli {

// The model, with the sequence length and the micro-batch size that it is usually timed at, as
// changed by `more` flags. There are as many positions as the sequence is long. Throws ConfigError
// for an unknown name, with those that there are.
std::vector<std::string> workload_command(const std::string& name,
                                          std::span<const std::string> more);

// "tiny, 124m, ... or llama3-8b"
std::string workload_names();

}  // namespace megatron::cli
