#pragma once

#include <string>

namespace megatron {

// The name of this host: "gpu7"; "localhost" if it has none.
std::string host_name();

// True if `name` is a name or an address of this host; false if it cannot be resolved.
bool is_this_host(const std::string& name);

}  // namespace megatron
