#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "megatron/checkpoint/async_save.h"
#include "megatron/checkpoint/config.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/cli/gpt_setup.h"
#include "megatron/interchange/hf/config.h"

namespace megatron::cli {

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

// Saves everything a run needs to go on exactly; begins to, where there is a saver for it.
void save_run(GptSetup& setup, const Tokenizer& tokenizer, AsyncSaver* saver = nullptr);
// The saver of --async-save; none without the flag, and for formats that it does not write.
std::unique_ptr<AsyncSaver> make_async_saver(const CheckpointConfig& config,
                                             const comm::Group& world);

// Brings a freshly built run to where the source stands; Megatron-LM's rules for --finetune,
// --no-load-optim and the scheduler flags. Throws ConfigError for every setting that contradicts
// the source, FormatError for tensors that do not fit.
void load_run(GptSetup& setup, const LoadSource& source);

// Fills the parameters of a model, or of a rank's part of it, from the source. Rows of the
// vocabulary that the source does not have are zero.
void load_weights(const GptModel& model, const LoadSource& source);

}  // namespace megatron::cli
