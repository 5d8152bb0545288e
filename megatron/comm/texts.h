#pragma once

#include <string>
#include <vector>

#include "megatron/comm/group.h"

namespace megatron::comm {

// All ranks' texts in rank order, on rank 0; empty elsewhere. Every rank calls it.
std::vector<std::string> gathered_on_first(const std::string& text, const Group& group);
// The same on every rank.
std::vector<std::string> gathered_texts(const std::string& text, const Group& group);

}  // namespace megatron::comm
