#include "annex/accelerate/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "annex/accelerate/plugin_settings.h"
#include "annex/deepspeed/apply_config.h"
#include "annex/deepspeed/config.h"
#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/core/parts.h"
#include "megatron/frontends/override_settings.h"

namespace megatron::frontends {
namespace {

// y, yes, t, true, on and 1 in any case are true, their opposites false.
std::optional<bool> truth_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* const word : {"y", "yes", "t", "true", "on", "1"}) {
    if (text == word) return true;
  }
  for (const char* const word : {"n", "no", "f", "false", "off", "0"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

class EnvironmentReader {
 public:
  EnvironmentReader(TrainingArgs& args, const Variable& variable,
                    std::vector<std::string>& problems)
      : args_(args), settings_(args), variable_(variable), problems_(problems) {}

  void apply_degrees() {
    if (!truth("ACCELERATE_USE_MEGATRON_LM").value_or(false)) return;
    apply_integer("MEGATRON_LM_TP_DEGREE", "tensor_model_parallel_size");
    apply_integer("MEGATRON_LM_PP_DEGREE", "pipeline_model_parallel_size");
  }

  void apply(int64_t world_size) {
    apply_precision();
    if (truth("ACCELERATE_USE_DEEPSPEED").value_or(false)) {
      if constexpr (kHasDeepSpeed) {
        apply_deepspeed(world_size);
      } else {
        problems_.push_back(missing_part("ACCELERATE_USE_DEEPSPEED", "MG_DEEPSPEED"));
      }
    }
    if (truth("ACCELERATE_USE_MEGATRON_LM").value_or(false)) apply_megatron(world_size);
  }

 private:
  void apply_megatron(int64_t world_size) {
    apply_degrees();
    apply_truth("MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "use_distributed_optimizer");
    apply_clipping();
    const char* const sequence = "MEGATRON_LM_SEQUENCE_PARALLELISM";
    if (args_.parallel.tensor_model_parallel_size > 1) apply_truth(sequence, "sequence_parallel");
    const char* const recompute = "MEGATRON_LM_RECOMPUTE_ACTIVATIONS";
    if (truth(recompute).value_or(false)) {
      settings_.set("recompute_granularity", std::string("selective"), recompute);
    }
    apply_batch(world_size);
    if (const std::string other = text(kPluginVariable); !other.empty()) {
      apply_plugin_settings(other, settings_, problems_);
    }
  }

  // The JSON file that the launcher names, or its own settings as such a file.
  [[maybe_unused]] void apply_deepspeed(int64_t world_size) {
    const std::string path = text("ACCELERATE_DEEPSPEED_CONFIG_FILE");
    try {
      if (!path.empty()) {
        apply_deepspeed_config(load_deepspeed_json(path), path, args_, world_size, problems_);
        return;
      }
    } catch (const Error& error) {
      problems_.emplace_back(error.what());
      return;
    }
    nlohmann::json file = {
        {"train_batch_size", "auto"},    {"train_micro_batch_size_per_gpu", "auto"},
        {"gradient_clipping", "auto"},   {"fp16", {{"enabled", "auto"}}},
        {"bf16", {{"enabled", "auto"}}}, {"zero_optimization", nlohmann::json::object()}};
    nlohmann::json& zero = file["zero_optimization"];
    const auto take = [&](const char* name, nlohmann::json& map, const char* key) {
      if (const std::string word = text(name); !word.empty()) map[key] = word;
    };
    take("ACCELERATE_GRADIENT_CLIPPING", file, "gradient_clipping");
    take("ACCELERATE_DEEPSPEED_ZERO_STAGE", zero, "stage");
    take("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", zero["offload_optimizer"], "device");
    take("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", zero["offload_param"], "device");
    if (const auto steps = integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")) {
      file["gradient_accumulation_steps"] = *steps;
      file.erase("train_batch_size");
    }
    apply_deepspeed_config(file, "ACCELERATE_USE_DEEPSPEED", args_, world_size, problems_);
  }

  // Empty if the variable is not set.
  std::string text(const char* name) const {
    const char* const value = variable_(name);
    return value == nullptr ? "" : value;
  }

  std::optional<bool> truth(const char* name) {
    const std::string word = text(name);
    if (word.empty()) return std::nullopt;
    const std::optional<bool> value = truth_of(word);
    if (!value) refuse(name, word, "true or false");
    return value;
  }

  std::optional<int64_t> integer(const char* name) {
    const std::string word = text(name);
    if (word.empty()) return std::nullopt;
    const std::optional<int64_t> value = integer_of(word);
    if (value && *value >= 1) return value;
    refuse(name, word, "an integer of at least 1");
    return std::nullopt;
  }

  void refuse(const char* name, const std::string& word, const char* rule) {
    problems_.push_back(
        fmt::format("the environment variable {} is {}; it must be {}", name, word, rule));
  }

  void apply_precision() {
    const char* const name = "ACCELERATE_MIXED_PRECISION";
    const std::string precision = text(name);
    if (precision == "fp16" || precision == "bf16") {
      settings_.set(precision, true, name);
    } else if (!precision.empty() && precision != "no") {
      refuse(name, precision, "no, fp16 or bf16");
    }
  }

  void apply_truth(const char* name, const char* dest) {
    if (const std::optional<bool> value = truth(name)) settings_.set(dest, *value, name);
  }

  void apply_integer(const char* name, const char* dest) {
    if (const std::optional<int64_t> value = integer(name)) settings_.set(dest, *value, name);
  }

  void apply_clipping() {
    const char* const name = "MEGATRON_LM_GRADIENT_CLIPPING";
    const std::string word = text(name);
    if (word.empty()) return;
    const std::optional<double> value = number_of(word);
    if (value && *value >= 0) {
      settings_.set("clip_grad", *value, name);
    } else {
      refuse(name, word, "a number of at least 0");
    }
  }

  void apply_batch(int64_t world_size) {
    const char* const name = "MEGATRON_LM_NUM_MICRO_BATCHES";
    const std::optional<int64_t> microbatches = integer(name);
    if (!microbatches) return;
    const ParallelConfig& parallel = args_.parallel;
    const int64_t ranks_of_a_replica = parallel.tensor_model_parallel_size *
                                       parallel.pipeline_model_parallel_size *
                                       parallel.context_parallel_size;
    const int64_t replicas = ranks_of_a_replica > 0 ? world_size / ranks_of_a_replica : 0;
    if (replicas < 1) return;  // reported with the other problems of the layout
    settings_.set("global_batch_size", *microbatches * args_.training.micro_batch_size * replicas,
                  name);
  }

  TrainingArgs& args_;
  OverrideSettings settings_;
  const Variable& variable_;
  std::vector<std::string>& problems_;
};

}  // namespace

void apply_accelerate_environment(TrainingArgs& args, int64_t world_size, const Variable& variable,
                                  std::vector<std::string>& problems) {
  EnvironmentReader(args, variable, problems).apply(world_size);
}

void apply_accelerate_degrees(ParallelConfig& parallel, const Variable& variable) {
  TrainingArgs args;
  args.parallel = parallel;
  std::vector<std::string> problems;
  EnvironmentReader(args, variable, problems).apply_degrees();
  if (!problems.empty()) throw ConfigError(problems);
  parallel = args.parallel;
}

}  // namespace megatron::frontends
