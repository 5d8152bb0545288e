#pragma once

#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

// The texts of all ranks in their order, on rank 0; none elsewhere. Every rank calls it.
std::vector<std::string> gathered_on_first(const std::string& text, const Group& group);

}  // namespace megatron::comm
