#pragma once

#include <string>

namespace megatron {

// A file of the repository: source_path("tests/golden/hf"). One object file knows where that is, so
// that all others are the same in every clone.
std::string source_path(const std::string& name);

}  // namespace megatron
