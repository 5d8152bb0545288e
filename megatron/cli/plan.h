#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron plan <training flags>`: what such a run takes of each rank's memory, what an iteration
// computes and sends, and about how long it takes. Allocates nothing and needs no GPU. Returns the
// exit code.
int plan(std::span<const std::string> argv);

}  // namespace megatron::cli
