#pragma once

#include <filesystem>
#include <optional>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/parts.h"

// Checkpoints of DeepSpeed. annex/deepspeed/checkpoint defines both functions: they are called only
// where kHasDeepSpeed (core/parts.h).
namespace megatron {

// Reads a DeepSpeed checkpoint: a directory with the files of its ranks, saved by a pipeline of
// BigScience's Megatron-DeepSpeed or by a module with the names of Megatron-LM, with any ZeRO stage
// and number of ranks, with Adam's state; or its conversion by ds_to_universal. Files are mapped;
// elements are read on demand, one parameter at a time.
//
// `fallback` has the settings for files that store none; it may omit sizes that tensors show. If
// the files have no learning-rate schedule as Megatron-LM's, the scalars have only the position in
// it.
//
// Throws IoError; FormatError for files that do not fit each other; Unsupported for tensors that no
// model of this program has.
CheckpointContents open_deepspeed_checkpoint(const std::filesystem::path& directory,
                                             const ArgMap& fallback = {},
                                             Parts parts = Parts::kAll);

// The folder of the config.json that belongs to a checkpoint of a model of transformers: its own,
// or the one above, where transformers' Trainer saves it; none if there is none.
std::optional<std::filesystem::path> hf_config_folder(const std::filesystem::path& checkpoint);

}  // namespace megatron
