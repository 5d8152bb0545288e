#pragma once

#include "annex/retro/preprocess/config.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// The flags of `megatron retro-preprocess` besides those of training. Used once for each config.
struct RetroFlags {
  retro::RetroConfig config;
  ArgMap without_effect;
};
FlagTable retro_flags(RetroFlags& flags);

}  // namespace megatron::cli
