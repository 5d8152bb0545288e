#pragma once

#include <string>

namespace megatron {

// The name of this host: "gpu7"; "localhost" if it has none.
std::string host_name();

}  // namespace megatron
