#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron classify`: classifies texts with a BERT that has a classification head. Every rank of
// `world` calls it.
int classify_text(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
