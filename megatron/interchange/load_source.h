#pragma once

#include <filesystem>
#include <optional>

#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/run_config.h"

namespace megatron {

// What --load names: a checkpoint, a Hugging Face model, or nothing yet.
struct LoadSource {
  std::optional<std::filesystem::path> checkpoint;  // the directory of one iteration
  CheckpointFormat format = CheckpointFormat::kNative;
  std::optional<HfModel> hf;  // of a directory of that format, instead
  std::filesystem::path hf_directory;

  bool exists() const { return checkpoint || hf; }
};
// Throws ConfigError when the directory holds neither and `must_exist`, or is of another format
// than `load_format`; IoError, FormatError.
LoadSource find_load_source(const std::filesystem::path& load, int64_t ckpt_step, bool must_exist,
                            LoadFormat load_format = LoadFormat::kAuto);

// The contents of a source that is a checkpoint. `fallback` has the settings for files that are too
// old to have their own.
CheckpointContents open_source(const LoadSource& source, const ArgMap& fallback = {});

// --use-checkpoint-args: takes the architecture from the source. REQUIRES: args are not resolved.
void take_architecture(TrainingArgs& args, const LoadSource& source);

// Fills this rank's part of a model from a source that is a Hugging Face model. Throws ConfigError
// for every setting of `config` that contradicts it.
void load_hf(const Module& model, const TransformerConfig& config, const LoadSource& source);

// Saves the state of a run in the format of another system that --save-format names. Every rank of
// `world` calls it.
void save_foreign(const RunConfig& run, const CheckpointState& state, const comm::Group& world);

// Fills the parameters of a model, or of a rank's part of it, from the source. Rows of the
// vocabulary that the source does not have are zero.
void load_weights(const GptModel& model, const LoadSource& source);

}  // namespace megatron
