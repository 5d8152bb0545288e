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
