#pragma once

#include <string>

namespace megatron {

// The name of this host: "gpu7".
std::string host_name();

}  // namespace megatron
