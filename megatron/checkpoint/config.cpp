#include "megatron/checkpoint/config.h"

#include <fmt/format.h>

namespace megatron {

std::string_view name_of(LoadFormat format) {
  constexpr std::string_view kNames[] = {"auto", "native", "megatron", "deepspeed", "hf"};
  return kNames[static_cast<size_t>(format)];
}

std::vector<std::string> problems(const CheckpointConfig& c) {
  std::vector<std::string> found;
  if (c.save_interval < 0) {
    found.push_back(fmt::format("--save-interval {} must be greater than 0", c.save_interval));
  } else if (!c.save.empty() && c.save_interval == 0) {
    found.emplace_back("--save-interval is required with --save; for example --save-interval 1000");
  }
  if (c.ckpt_step < 0) {
    found.push_back(
        fmt::format("--ckpt-step {} must be an iteration, from 1 on; leave the flag out for the "
                    "latest one",
                    c.ckpt_step));
  }
  if (c.keep_last < 0) {
    found.push_back(fmt::format("--keep-last {} must be at least 1", c.keep_last));
  }
  if (c.save_format != SaveFormat::kNative && c.keep_last > 0) {
    found.emplace_back(
        "--keep-last deletes checkpoints of the native format only; remove it or --save-format");
  }
  const bool is_local = c.non_persistent_ckpt_type == NonPersistentType::kLocal;
  if (c.non_persistent_ckpt_type == NonPersistentType::kGlobal) {
    found.emplace_back(
        "--non-persistent-ckpt-type global is not available: it would save all ranks' checkpoints "
        "to one directory, as --save-interval with --keep-last does; use these, or local");
  }
  if (c.non_persistent_ckpt_type == NonPersistentType::kInMemory) {
    found.emplace_back(
        "--non-persistent-ckpt-type in_memory is not available; use local, which is in memory with "
        "`megatron launch --max-restarts N`");
  }
  if (c.non_persistent_save_interval < 0 || (is_local && c.non_persistent_save_interval == 0)) {
    found.push_back(fmt::format(
        "--non-persistent-save-interval {} must be at least 1 with --non-persistent-ckpt-type "
        "local",
        c.non_persistent_save_interval));
  }
  if (c.non_persistent_save_interval > 0 &&
      c.non_persistent_ckpt_type == NonPersistentType::kNone) {
    found.emplace_back(
        "--non-persistent-save-interval needs --non-persistent-ckpt-type local; add it");
  }
  if (c.replication && !is_local) {
    found.emplace_back("--replication needs --non-persistent-ckpt-type local; add it");
  }
  if (c.replication_factor < 2) {
    found.push_back(fmt::format(
        "--replication-factor {} must be at least 2: the rank itself, and those with copies; leave "
        "out --replication for none",
        c.replication_factor));
  }
  if (c.replication_jump < 0) {
    found.push_back(fmt::format("--replication-jump {} must be at least 1", c.replication_jump));
  }
  if (c.load.empty()) {
    if (c.use_checkpoint_args) {
      found.emplace_back("--use-checkpoint-args needs --load with the checkpoint's directory");
    }
    if (c.exit_on_missing_checkpoint) {
      found.emplace_back("--exit-on-missing-checkpoint needs --load; add it or remove the flag");
    }
  }
  return found;
}

}  // namespace megatron
