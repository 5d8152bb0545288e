#pragma once

#include <string>

namespace megatron {

// What the linker has made of the content of this program, in hexadecimal digits: two programs of
// the same build id are the same. Empty where the linker writes none.
std::string build_id();

}  // namespace megatron
