#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/settings/flag_table.h"
#include "megatron/training/run_config.h"

namespace megatron {

// --ckpt-format of Megatron-LM; of these only torch_dist has an effect.
enum class CkptFormat { kTorch, kTorchDist, kTorchDcp, kFsdpDtensor, kZarr };

// --data-parallel-sharding-strategy of Megatron Core; the values are stages of ZeRO.
enum class ShardingStrategy { kNone, kOptimizer, kGradients, kParameters };

// Flags of other versions, which resolve() converts into fields of the configs.
struct LegacyFlags {
  bool use_rotary_position_embeddings = false;  // position_embedding_type rope
  bool add_position_embedding = true;
  std::vector<int64_t> window_size;             // attention_window: one more than the first
  bool recompute_activations = false;           // recompute_granularity selective
  bool checkpoint_activations = false;          // recompute_granularity full, method uniform
  int64_t checkpoint_num_layers = 1;            // recompute_num_layers of the line above
  int64_t retro_cyclic_train_iters = 0;         // train_iters of data in cyclic order
  CkptFormat ckpt_format = CkptFormat::kTorch;  // torch_dist: save_format torch_dist
  bool use_megatron_fsdp = false;               // zero_stage of the strategy
  ShardingStrategy sharding_strategy = ShardingStrategy::kNone;
  bool use_torch_fsdp2 = false;  // zero_stage 3
};

// --log-arguments: the arguments that a run lists at its start.
enum class LogArguments { kSet, kAll, kNone };

// The command line of a training program: the config of the run, and facts about the command line
// itself.
struct TrainingArgs : RunConfig {
  ActivationFlags activation;
  LegacyFlags legacy;
  LogArguments log_arguments = LogArguments::kSet;
  ArgMap other;  // flags without a field: no effect, or not available

  std::set<std::string> given;        // settings on the command line
  std::vector<std::string> warnings;  // one sentence each, for standard error
  std::vector<std::string> notes;     // lines that Megatron-LM prints before the argument dump
  bool wants_help = false;            // --help was given; nothing else was checked
  HelpScope help_scope = HelpScope::kUseful;
};

// All training flags, bound to `args`, which must outlive the table and must not move.
FlagTable training_flags(TrainingArgs& args);

// Reads a command line (without the program's name) and resolves it for `world_size` ranks.
// Throws ConfigError with all problems.
TrainingArgs parse_training_args(std::span<const std::string> argv, ModelKind model,
                                 int64_t world_size);

// Its two steps, for programs that add settings in between (a checkpoint's arguments, a YAML file).
// They append problems, one sentence each.
TrainingArgs parsed_flags(std::span<const std::string> argv, ModelKind model,
                          std::vector<std::string>& problems);
TrainingArgs resolved(TrainingArgs args, int64_t world_size, std::vector<std::string>& problems);

// The same for the settings of a launch, which no model changes.
inline TrainingArgs parsed_flags(std::span<const std::string> argv,
                                 std::vector<std::string>& problems) {
  return parsed_flags(argv, ModelKind(), problems);
}

// The config of a program without a command line as flags: a field counts as given if it differs
// from its default.
TrainingArgs args_of(const RunConfig& config);
// Completes such a config: fills all defaults and `settings`. Throws ConfigError with all problems.
RunConfig resolved(const RunConfig& config, int64_t world_size = 1);

// The flags that select a model's activation. Throws Unsupported if there are none.
ActivationFlags activation_flags(const TransformerConfig& config);

// Precedence for a setting that both the command line and a checkpoint have.
enum class GivenSetting {
  kByRow,        // the command line, except for rows that are taken from a checkpoint kAlways
  kCommandLine,  // the command line
};

// --use-checkpoint-args: takes the architecture from the arguments stored in a checkpoint; call it
// before resolved(). kByRow: the command line wins for settings that it names, except those that
// Megatron-LM always takes from the checkpoint (query groups, position embedding, biases, swiglu,
// normalization, untied output weights). Throws ConfigError for a stored value of another type.
void use_checkpoint_args(TrainingArgs& args, const ArgMap& stored,
                         GivenSetting given = GivenSetting::kByRow);

// Takes from a checkpoint the number of rows of its embeddings, with and without padding. Throws
// FormatError for impossible numbers.
void use_checkpoint_vocabulary(TransformerConfig& config, const ArgMap& stored);

// Features that resolved args need but this version lacks, one sentence each.
std::vector<std::string> unavailable(const TrainingArgs& args);

// Every setting by its name in Megatron-LM.
ArgMap arg_map(const TrainingArgs& args);

// The settings that were given or differ from their defaults, and those that follow from the ranks.
ArgMap set_arguments(const TrainingArgs& args);

// Megatron-LM's list of arguments, one per line, without line ends.
std::vector<std::string> argument_dump(const ArgMap& args);

// The text of --help for `megatron <command>`, a program of this model.
std::string training_help(const std::string& command, ModelKind model, HelpScope scope);

}  // namespace megatron
