#include "annex/accelerate/plugin_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/json.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "megatron_lm_";
constexpr const char* kOther = "other_megatron_args";

// Settings of the questionnaire have their own variables (launch_plan.cpp).
constexpr std::array<std::string_view, 7> kAsked = {"tp_degree",
                                                    "pp_degree",
                                                    "gradient_clipping",
                                                    "num_micro_batches",
                                                    "sequence_parallelism",
                                                    "recompute_activations",
                                                    "use_distributed_optimizer"};

// Fields that have the name of a setting of Megatron-LM.
constexpr std::array<std::string_view, 23> kSettings = {"num_layers_per_virtual_pipeline_stage",
                                                        "pipeline_model_parallel_split_rank",
                                                        "train_iters",
                                                        "train_samples",
                                                        "weight_decay_incr_style",
                                                        "start_weight_decay",
                                                        "end_weight_decay",
                                                        "lr_decay_style",
                                                        "lr_decay_iters",
                                                        "lr_decay_samples",
                                                        "lr_warmup_iters",
                                                        "lr_warmup_samples",
                                                        "lr_warmup_fraction",
                                                        "min_lr",
                                                        "seq_length",
                                                        "encoder_seq_length",
                                                        "decoder_seq_length",
                                                        "tensorboard_dir",
                                                        "eval_iters",
                                                        "eval_interval",
                                                        "recompute_granularity",
                                                        "recompute_method",
                                                        "recompute_num_layers"};

// --set_all_logging_options.
constexpr const char* kLogging[] = {"log_params_norm",
                                    "log_num_zeros_in_grad",
                                    "log_throughput",
                                    "log_progress",
                                    "log_timers_to_tensorboard",
                                    "log_batch_size_to_tensorboard",
                                    "log_memory_to_tensorboard",
                                    "log_validation_ppl_to_tensorboard",
                                    "log_world_size_to_tensorboard"};

ArgValue value_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return ArgValue();
  if (std::all_of(value.begin(), value.end(),
                  [](const json& v) { return v.is_number_integer(); })) {
    return value.get<std::vector<int64_t>>();
  }
  std::vector<std::string> words;
  for (const json& word : value)
    words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
  return words;
}

class PluginApplier {
 public:
  PluginApplier(OverrideSettings& settings, std::vector<std::string>& problems)
      : settings_(settings), problems_(problems) {}

  void apply(const std::string& name, const json& value) {
    if (name == "attention_head_type") return apply_heads(value);
    if (name == "position_embedding_type" && value == "absolute")
      return set(name, "learned_absolute");
    if (name == "position_embedding_type" && value == "rotary") return set(name, "rope");
    set(name, value);
  }

 private:
  void apply_heads(const json& value) {
    if (value == "multihead") return;
    if (value == "multiquery") {
      set("group_query_attention", true);
      return set("num_query_groups", 1);
    }
    problems_.push_back(fmt::format("{}: attention_head_type {} must be multihead or multiquery",
                                    kOther, shortened_json(value)));
  }

  void set(const std::string& name, const json& value) {
    try {
      settings_.set(name, value_of(value), kOther);
    } catch (const ConfigError&) {
      if (value.is_number_integer()) return set(name, value.get<double>());  // "min_lr: 0"
      problems_.push_back(fmt::format("{}: {} {} is no setting of Megatron-LM with such a value",
                                      kOther, name, shortened_json(value)));
    }
  }

  OverrideSettings& settings_;
  std::vector<std::string>& problems_;
};

bool has(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

json plugin_settings(const json& config, std::vector<std::string>& warnings) {
  json settings = json::object();
  for (const auto& [key, value] : config.items()) {
    const bool has_prefix = std::string_view(key).starts_with(kPrefix);
    const std::string name = has_prefix ? key.substr(kPrefix.size()) : key;
    if (has(kAsked, name) && has_prefix) continue;
    if (value.is_null() || (name == kOther && value.is_object())) continue;
    if (has(kSettings, name)) {
      settings[name] = value;
    } else if (name == "set_all_logging_options") {
      for (const char* option : kLogging) {
        if (value == true) settings[option] = true;
      }
    } else {
      warnings.push_back(fmt::format("megatron_lm_config: {} has no effect", key));
    }
  }
  for (const std::string& key : {std::string(kPrefix) + kOther, std::string(kOther)}) {
    if (config.contains(key) && config[key].is_object()) settings.update(config[key]);
  }
  return settings;
}

void apply_plugin_settings(const std::string& text, OverrideSettings& settings,
                           std::vector<std::string>& problems) {
  const json map = try_parse_json(text);
  if (!map.is_object()) {
    problems.push_back(
        fmt::format("the environment variable {} must hold one JSON object", kPluginVariable));
    return;
  }
  PluginApplier applier(settings, problems);
  for (const auto& [name, value] : map.items()) applier.apply(name, value);
}

}  // namespace megatron::frontends
