#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::program {

// The processes that `parent` has started, and their descendants.
std::vector<pid_t> descendants(pid_t parent);
// The descendant with this variable ("RANK=3") in its environment; -1 if there is none.
pid_t descendant_with(pid_t parent, const std::string& variable);
bool exists(pid_t process);
// The TCP ports of this network at which `parent` and its descendants listen.
std::vector<uint16_t> listening_ports(pid_t parent);

}  // namespace megatron::program
