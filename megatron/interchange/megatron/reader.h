#pragma once

#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/arg_map.h"

namespace megatron {

// A GPT checkpoint of Megatron-LM: the directory of one iteration with a folder for each rank, of
// any tensor-, pipeline- and virtual-pipeline-parallel size, of checkpoint versions 0 to 3, of the
// older models or Megatron Core, with the optimizer's state in the same files or in
// distrib_optim.pt. Tensors have our names and are whole; the files are mapped and read on demand.
//
// `fallback` has the settings for files that are too old to have their own.
//
// Throws IoError; FormatError for files that do not fit each other or the model they describe;
// Unsupported for experts and for tensors that no GPT of this program has.
CheckpointContents open_megatron_checkpoint(const std::filesystem::path& directory,
                                            const ArgMap& fallback = {});

}  // namespace megatron
