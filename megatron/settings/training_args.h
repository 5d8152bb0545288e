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

enum class ModelKind { kGpt, kBert, kT5 };

// Flags of older versions that resolve() turns into fields of the configs.
struct LegacyFlags {
  bool use_rotary_position_embeddings = false;  // position_embedding_type rope
  bool add_position_embedding = true;
  bool recompute_activations = false;   // recompute_granularity selective
  bool checkpoint_activations = false;  // recompute_granularity full, method uniform
  int64_t checkpoint_num_layers = 1;    // recompute_num_layers of the line above
};

// What the command line of a training program says: the config of the run, and what only a command
// line knows.
struct TrainingArgs : RunConfig {
  ModelKind model = ModelKind::kGpt;
  ActivationFlags activation;
  LegacyFlags legacy;
  ArgMap other;  // flags without a field: no effect, or not available

  std::set<std::string> given;        // settings that the command line named
  std::vector<std::string> warnings;  // one sentence each, for standard error
  std::vector<std::string> notes;     // lines that Megatron-LM prints before the argument dump
  bool wants_help = false;            // --help was given; nothing else was checked
  HelpScope help_scope = HelpScope::kUseful;
};

// All training flags, bound to `args`, which must outlive the table and stay where it is.
FlagTable training_flags(TrainingArgs& args);

// Reads a command line (without the program's name) and resolves it for `world_size` ranks.
// Throws ConfigError with every problem found.
TrainingArgs parse_training_args(std::span<const std::string> argv, ModelKind model,
                                 int64_t world_size);

// The two halves of the above, for programs that add settings between them (a checkpoint's
// arguments, a YAML file). Problems are appended, one sentence each.
TrainingArgs parsed_flags(std::span<const std::string> argv, ModelKind model,
                          std::vector<std::string>& problems);
TrainingArgs resolved(TrainingArgs args, int64_t world_size, std::vector<std::string>& problems);

// Completes the config of a program that reads no command line: fills every value that was left to
// its default, and `settings`. A field counts as given when it differs from its default. Throws
// ConfigError with every problem found.
RunConfig resolved(const RunConfig& config, int64_t world_size = 1);

// The flags that choose an activation. Throws Unsupported for one that no flag chooses.
ActivationFlags activation_flags(Activation activation);

// --use-checkpoint-args: takes the architecture from the arguments stored in a checkpoint; call it
// before resolved(). The command line wins for what it names, except the settings whose value
// Megatron-LM always takes from the checkpoint (query groups, position embedding, biases, swiglu,
// normalization, untied output weights). Throws ConfigError for a stored value of another type.
void use_checkpoint_args(TrainingArgs& args, const ArgMap& stored);

// Takes the rows of the embedding that a checkpoint stored, and how many of them are not padding.
// Throws FormatError for numbers that no vocabulary has.
void use_checkpoint_vocabulary(TransformerConfig& config, const ArgMap& stored);

// What resolved args ask for that this version cannot do, one sentence each.
std::vector<std::string> unavailable(const TrainingArgs& args);

// Every setting by its name in Megatron-LM.
ArgMap arg_map(const TrainingArgs& args);

// Megatron-LM's list of arguments, a line each, without line ends.
std::vector<std::string> argument_dump(const ArgMap& args);

// The text of --help for `megatron <command>`, a program of this model.
std::string training_help(const std::string& command, ModelKind model, HelpScope scope);
// "GPT", "BERT", "T5": as rows of the table name them.
std::string_view name_of(ModelKind model);

}  // namespace megatron
