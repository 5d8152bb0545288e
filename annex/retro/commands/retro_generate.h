#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron retro-generate`: answers the questions of a file, as Megatron-LM's
// tools/retro/text_generation/retro_text_generation.py. Every rank of `world` calls it; rank 0
// reads and writes.
int retro_generate(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
