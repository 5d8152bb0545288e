#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron generate`: continues prompts with a GPT from a native or Hugging Face directory. Every
// rank of `world` calls it; rank 0 reads and prints.
int generate_text(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
