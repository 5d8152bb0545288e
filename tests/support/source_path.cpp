#include "tests/support/source_path.h"

namespace megatron {

std::string source_path(const std::string& name) { return std::string(MG_SOURCE_DIR) + "/" + name; }

}  // namespace megatron
