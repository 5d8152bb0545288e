#include "megatron/cli/launcher_settings.h"

#include <cstdlib>

#include "annex/accelerate/environment.h"
#include "annex/deepspeed/apply_config.h"
#include "megatron/core/parts.h"

namespace megatron::cli {
namespace {

// The flags that annex/deepspeed applies.
constexpr const char* kDeepSpeedFlags[] = {"deepspeed_config",
                                           "train_tokens",
                                           "lr_decay_tokens",
                                           "skip_train_iteration_range",
                                           "attention_head_type",
                                           "partition_activations",
                                           "pp_partition_method",
                                           "universal_checkpoint",
                                           "train_weighted_split_paths_path",
                                           "valid_weighted_split_paths_path",
                                           "test_weighted_split_paths_path"};

constexpr const char* kAccelerateVariables[] = {
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"};

const char* variable(const char* name) { return std::getenv(name); }

}  // namespace

void apply_deepspeed_flags(TrainingArgs& args, int64_t world_size,
                           std::vector<std::string>& problems) {
  if constexpr (kHasDeepSpeed) {
    frontends::apply_deepspeed_flags(args, world_size, problems);
  } else {
    for (const std::string flag : kDeepSpeedFlags) {
      if (args.given.contains(flag)) problems.push_back(missing_part("--" + flag, "MG_DEEPSPEED"));
    }
  }
}

void apply_launcher_settings(TrainingArgs& args, int64_t world_size,
                             std::vector<std::string>& problems) {
  if constexpr (kHasAccelerate) {
    frontends::apply_accelerate_environment(args, world_size, variable, problems);
  } else {
    for (const std::string name : kAccelerateVariables) {
      if (variable(name.c_str()) == nullptr) continue;
      problems.push_back(missing_part("the environment variable " + name, "MG_ACCELERATE"));
    }
  }
  apply_deepspeed_flags(args, world_size, problems);
}

void apply_launcher_degrees(ParallelConfig& parallel) {
  if constexpr (kHasAccelerate) frontends::apply_accelerate_degrees(parallel, variable);
}

}  // namespace megatron::cli
