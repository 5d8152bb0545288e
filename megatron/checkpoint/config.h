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

// --non-persistent-ckpt-type. kLocal: a checkpoint in the memory or on the disk of each host
// (local_checkpoints.h).
enum class NonPersistentType { kNone, kGlobal, kLocal, kInMemory };

// Sources and destinations of checkpoints. Names are Megatron's flag names.
struct CheckpointConfig {
  std::string save;                  // directory; empty: no saving
  int64_t save_interval = 0;         // in iterations; required with save
  int64_t keep_last = 0;             // own flag: keep only the newest checkpoints; 0: all
  int64_t save_retain_interval = 0;  // always keep iterations that it divides; 0: none
  bool no_save_optim = false;
  bool no_save_rng = false;
  bool async_save = false;  // write files while training continues

  int64_t non_persistent_save_interval = 0;  // in iterations; 0: none
  NonPersistentType non_persistent_ckpt_type = NonPersistentType::kNone;
  std::string non_persistent_local_ckpt_dir;  // empty: memory that `megatron launch` keeps
  bool replication = false;                   // copies on other hosts, too
  int64_t replication_jump = 0;    // between ranks that have the same copies; 0: the host's ranks
  int64_t replication_factor = 2;  // ranks that have the same copies

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
