#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron launch [flags] <command> [its flags]`: runs a command on several ranks. Returns the
// exit code.
int launch(std::span<const std::string> words);

}  // namespace megatron::cli
