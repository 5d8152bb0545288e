#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron retro-preprocess`: cuts documents into chunks, makes a search index of them, and finds
// the neighbours of the chunks of all samples of a training (docs/retro.md). Every rank of `world`
// calls it; they share the work. In a build without MG_RETRO it throws Unsupported.
int retro_preprocess(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
