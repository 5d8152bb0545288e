#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace megatron::program {

// The processes that `parent` has started, and theirs.
std::vector<pid_t> descendants(pid_t parent);
// The one of them that has this variable ("RANK=3") in its environment; -1 when there is none.
pid_t descendant_with(pid_t parent, const std::string& variable);
bool exists(pid_t process);

}  // namespace megatron::program
