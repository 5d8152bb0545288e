#pragma once

#include <span>
#include <string>
#include <vector>

namespace megatron::cli {

// The flags of convert-checkpoint for a command line of DeepSpeed's zero_to_fp32.py:
//
//   CHECKPOINT OUTPUT [-t TAG] [--safe_serialization] [--max_shard_size SIZE]
//
// Writes a Hugging Face model with the main parameters. Further arguments are flags of
// convert-checkpoint. Throws ConfigError.
std::vector<std::string> words_of_zero_to_fp32(std::span<const std::string> words);

}  // namespace megatron::cli
