#pragma once

#include <string>

namespace megatron {

// A file of the repository: source_path("tests/golden/hf"). Only one object file contains the
// repository's path, so all others are the same in every clone.
std::string source_path(const std::string& name);

}  // namespace megatron
