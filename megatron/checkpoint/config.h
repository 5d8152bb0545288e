#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// --load-format: the required format of --load; auto accepts any.
enum class LoadFormat { kAuto, kNative, kMegatron, kDeepSpeed, kHuggingFace };
// "auto", and the names of CheckpointFormat.
std::string_view name_of(LoadFormat format);

// --save-format: the system that can read the checkpoints of --save.
enum class SaveFormat { kNative, kMegatron, kMegatronCore, kTorchDist, kHuggingFace };

// Sources and destinations of checkpoints. Names are Megatron's flag names.
struct CheckpointConfig {
  std::string save;                  // directory; empty: no saving
  int64_t save_interval = 0;         // in iterations; required with save
  int64_t keep_last = 0;             // own flag: keep only the newest checkpoints; 0: all
  int64_t save_retain_interval = 0;  // always keep iterations that it divides; 0: none
  bool no_save_optim = false;
  bool no_save_rng = false;
  bool async_save = false;  // write files while training continues

  bool overwrite_checkpoints = false;  // own flag: save beside other runs' checkpoints

  SaveFormat save_format = SaveFormat::kNative;

  std::string load;  // directory; empty: start from random weights
  LoadFormat load_format = LoadFormat::kAuto;
  int64_t ckpt_step = 0;  // iteration to load; 0: the latest
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool finetune = false;                  // weights only; iteration and sample counters start at 0
  bool moe_use_upcycling = false;         // make experts of the checkpoint's dense layers
  int64_t moe_upcycling_granularity = 1;  // experts made of each, of a part of its width
  bool use_checkpoint_args = false;       // take the architecture from the checkpoint
  bool exit_on_missing_checkpoint = false;
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const CheckpointConfig& config);

}  // namespace megatron
