#pragma once

#include <string>

#include "megatron/checkpoint/contents.h"

namespace megatron::cli {

// A line for each tensor: its name, dtype, shape and number of pieces, by section. Without the last
// line's end.
std::string contents_text(const CheckpointContents& contents);

}  // namespace megatron::cli
