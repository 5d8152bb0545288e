#include "megatron/settings/training_args.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/settings/groups/groups.h"

namespace megatron {
namespace {

constexpr size_t kDumpNameWidth = 48;

// Sizes of embeddings set by the tokenizer and the data instead of flags. 0: unknown.
struct ModelFact {
  const char* name;
  int64_t TransformerConfig::*field;
};
constexpr ModelFact kModelFacts[] = {{"padded_vocab_size", &TransformerConfig::padded_vocab_size},
                                     {"true_vocab_size", &TransformerConfig::true_vocab_size},
                                     {"num_tokentypes", &TransformerConfig::num_tokentypes}};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

FlagTable training_flags(TrainingArgs& args) {
  FlagTable flags;
  add_network_size_flags(flags, args);
  add_regularization_flags(flags, args);
  add_latent_flags(flags, args);
  add_multi_token_flags(flags, args);
  add_lora_flags(flags, args);
  add_training_flags(flags, args);
  add_initialization_flags(flags, args);
  add_learning_rate_flags(flags, args);
  add_checkpointing_flags(flags, args);
  add_mixed_precision_flags(flags, args);
  add_distributed_flags(flags, args);
  add_validation_flags(flags, args);
  add_data_flags(flags, args);
  add_logging_flags(flags, args);
  add_machine_flags(flags, args);
  add_inference_flags(flags, args);
  add_moe_flags(flags, args);
  add_retro_flags(flags, args);
  add_compat_flags(flags, args);
  return flags;
}

TrainingArgs parsed_flags(std::span<const std::string> argv, ModelKind model,
                          std::vector<std::string>& problems) {
  TrainingArgs args;
  FlagTable flags = training_flags(args);
  ParsedFlags parsed = flags.parse(argv);
  args.transformer.kind = model;
  args.given = std::move(parsed.given);
  args.wants_help = parsed.wants_help;
  if (parsed.wants_all_help) args.help_scope = HelpScope::kAll;
  problems.insert(problems.end(), parsed.problems.begin(), parsed.problems.end());
  for (const std::string& word : parsed.words) {
    problems.push_back(
        fmt::format("{} belongs to no flag; quote values that contain spaces", word));
  }
  if (!parsed.ignored.empty()) {
    args.warnings.push_back(fmt::format("no effect here: {}", fmt::join(parsed.ignored, " ")));
  }
  for (std::string& warning : parsed.warnings) args.warnings.push_back(std::move(warning));
  for (const Flag& flag : flags.rows()) {
    const std::vector<std::string>& models = flag.models;
    if (models.empty() || !args.given.contains(flag.dest)) continue;
    if (std::find(models.begin(), models.end(), name_of(model)) != models.end()) continue;
    args.warnings.push_back(fmt::format("{} has no effect with {}: it is for {}",
                                        flag.names.front(), name_of(model),
                                        fmt::join(models, " and ")));
  }
  return args;
}

TrainingArgs parse_training_args(std::span<const std::string> argv, ModelKind model,
                                 int64_t world_size) {
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(argv, model, problems);
  if (args.wants_help) return args;
  args = resolved(std::move(args), world_size, problems);
  for (std::string& problem : unavailable(args)) problems.push_back(std::move(problem));
  if (!problems.empty()) throw ConfigError(problems);
  return args;
}

void use_checkpoint_args(TrainingArgs& args, const ArgMap& stored, GivenSetting given) {
  FlagTable flags = training_flags(args);
  // A flag that selects the activation replaces all of them; --no-bias-gelu-fusion only selects the
  // form of GELU.
  constexpr std::string_view kActivation = "activation";
  const bool has_activation = given == GivenSetting::kCommandLine &&
                              std::ranges::any_of(flags.rows(), [&](const Flag& flag) {
                                return flag.carrier == kActivation &&
                                       flag.dest != "bias_gelu_fusion" &&
                                       args.given.contains(flag.dest);
                              });
  for (const Flag& flag : flags.rows()) {
    if (has_activation && flag.carrier == kActivation) continue;
    if (flag.taken_from_checkpoint == FromCheckpoint::kNever) continue;
    const bool is_free =
        flag.taken_from_checkpoint == FromCheckpoint::kAlways && given == GivenSetting::kByRow;
    if (!is_free && args.given.contains(flag.dest)) continue;
    const auto found = stored.find(flag.dest);
    if (found != stored.end()) flags.assign(flag.dest, found->second);
  }
  // Compat: Megatron Core 0.19 stores None for its default, which is YaRN.
  const auto type = stored.find("rope_type");
  const bool is_unknown =
      type == stored.end() || std::holds_alternative<std::monostate>(type->second);
  RopeScaling& scaling = args.transformer.rope_scaling;
  if (args.transformer.multi_latent_attention && is_unknown && !args.given.contains("rope_type") &&
      scaling.factor != 1) {
    scaling.type = RopeScalingType::kYarn;
  }
  use_checkpoint_vocabulary(args.transformer, stored);
}

void use_checkpoint_vocabulary(TransformerConfig& config, const ArgMap& stored) {
  for (const ModelFact& fact : kModelFacts) {
    const auto found = stored.find(fact.name);
    const int64_t* value = found != stored.end() ? std::get_if<int64_t>(&found->second) : nullptr;
    if (value == nullptr) continue;
    if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
      throw FormatError(fmt::format("the checkpoint's {} is {}, expected 0 to {}", fact.name,
                                    *value, std::numeric_limits<int32_t>::max()));
    }
    config.*fact.field = *value;
  }
}

ArgMap arg_map(const TrainingArgs& args) {
  TrainingArgs bound;
  const FlagTable flags = training_flags(bound);
  bound = args;
  // Without the switch the groups equal the heads; the flag keeps its default.
  if (!args.transformer.group_query_attention) bound.transformer.num_query_groups = 1;
  const int64_t window = args.transformer.attention_window;
  if (window > 0) bound.legacy.window_size = {window - 1, 0};
  ArgMap map = flags.values(args.given);

  const ParallelConfig& parallel = args.parallel;
  map["world_size"] = parallel.world_size;
  map["rank"] = int64_t{0};
  map["data_parallel_size"] = parallel.data_parallel_size;
  map["transformer_pipeline_model_parallel_size"] =
      parallel.pipeline_model_parallel_size - (parallel.standalone_embedding_stage ? 1 : 0);
  const int64_t virtual_size = parallel.virtual_pipeline_model_parallel_size;
  map["virtual_pipeline_model_parallel_size"] =
      virtual_size > 0 ? ArgValue(virtual_size) : ArgValue();
  map["params_dtype"] = args.transformer.params_dtype;
  map["consumed_train_samples"] = int64_t{0};
  map["consumed_valid_samples"] = int64_t{0};
  map["variable_seq_lengths"] = false;
  for (const ModelFact& fact : kModelFacts) {
    if (const int64_t value = args.transformer.*fact.field; value > 0) map[fact.name] = value;
  }
  return map;
}

ArgMap set_arguments(const TrainingArgs& args) {
  ArgMap map = arg_map(args);
  TrainingArgs initial;
  training_flags(initial);  // sets the values of flags without a field
  ArgMap defaults = arg_map(initial);
  for (const char* of_ranks : {"world_size", "data_parallel_size", "params_dtype"}) {
    defaults.erase(of_ranks);
  }
  std::erase_if(map, [&](const auto& setting) {
    const auto& [name, value] = setting;
    const auto found = defaults.find(name);
    return !args.given.contains(name) && found != defaults.end() && found->second == value;
  });
  return map;
}

std::vector<std::string> argument_dump(const ArgMap& args) {
  std::vector<std::string> names;
  for (const auto& [name, value] : args) names.push_back(name);
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return lower(a) < lower(b); });
  std::vector<std::string> lines = {"------------------------ arguments ------------------------"};
  for (const std::string& name : names) {
    const std::string dots(kDumpNameWidth - std::min(kDumpNameWidth, name.size()), '.');
    lines.push_back(fmt::format("  {} {} {}", name, dots, text_of(args.at(name))));
  }
  lines.emplace_back("-------------------- end of arguments ---------------------");
  return lines;
}

std::string training_help(const std::string& command, ModelKind model, HelpScope scope) {
  TrainingArgs args;
  return fmt::format(
      "usage: megatron {} [flags]\n\n"
      "- and _ are the same inside a flag; the last occurrence of a flag wins.\n{}{}",
      command,
      scope == HelpScope::kAll ? ""
                               : "--help-all also lists flags that are accepted without effect "
                                 "or refused.\n",
      training_flags(args).help(scope, name_of(model)));
}

}  // namespace megatron
