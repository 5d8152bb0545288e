#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron serve`: serves a GPT from a native or Hugging Face directory over HTTP, until SIGTERM
// or SIGINT. Every rank of `world` calls it; rank 0 listens.
int serve_model(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
