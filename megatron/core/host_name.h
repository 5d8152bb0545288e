#pragma once

#include <string>

namespace megatron {

// The name of this host: "gpu7"; "localhost" if it has none.
std::string host_name();

// Is that a name or an address of this host? A name that cannot be resolved is another host's.
bool is_this_host(const std::string& name);

}  // namespace megatron
