#pragma once

#include <string>

namespace megatron {

// The linker's hash of this program, in hexadecimal digits: programs with equal build ids are
// equal. Empty if the linker writes none.
std::string build_id();

}  // namespace megatron
