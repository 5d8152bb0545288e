#pragma once

#include <string>

#include "tests/program/program.h"

namespace megatron::program {

// Runs `megatron <command> <words>` on a pseudo-terminal of 100 columns. All that it writes there,
// with the terminal's line ends, is Outcome::out. It is killed after 60 seconds without output.
Outcome run_on_terminal(const std::string& command, const Words& words);

}  // namespace megatron::program
