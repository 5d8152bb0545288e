#include "annex/accelerate/cluster_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>

#include "annex/accelerate/yaml.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/number_text.h"
#include "megatron/core/parts.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using Version = AccelerateVersion;

enum class Kind { kText, kInteger, kFlag, kMap, kAny };

struct Key {
  const char* name;
  Kind kind;
  const char* initial;  // as JSON
  Version since = Version::k0_14;
  Version until = Version::k1_15;
  bool is_in_document = false;  // 0.14 writes it even if it is null or empty
};

constexpr Key kKeys[] = {
    {.name = "compute_environment",
     .kind = Kind::kText,
     .initial = "\"LOCAL_MACHINE\"",
     .is_in_document = true},
    {.name = "distributed_type", .kind = Kind::kText, .initial = "null", .is_in_document = true},
    {.name = "mixed_precision", .kind = Kind::kText, .initial = "null", .is_in_document = true},
    {.name = "use_cpu", .kind = Kind::kFlag, .initial = "false", .is_in_document = true},
    {.name = "debug", .kind = Kind::kFlag, .initial = "false", .since = Version::k0_27},
    {.name = "num_processes", .kind = Kind::kInteger, .initial = "null", .is_in_document = true},
    {.name = "machine_rank", .kind = Kind::kInteger, .initial = "0", .is_in_document = true},
    {.name = "num_machines", .kind = Kind::kInteger, .initial = "1", .is_in_document = true},
    {.name = "gpu_ids", .kind = Kind::kText, .initial = "null"},
    {.name = "main_process_ip", .kind = Kind::kText, .initial = "null", .is_in_document = true},
    {.name = "main_process_port",
     .kind = Kind::kInteger,
     .initial = "null",
     .is_in_document = true},
    {.name = "rdzv_backend", .kind = Kind::kText, .initial = "\"static\"", .is_in_document = true},
    {.name = "same_network", .kind = Kind::kFlag, .initial = "false", .is_in_document = true},
    {.name = "main_training_function",
     .kind = Kind::kText,
     .initial = "\"main\"",
     .is_in_document = true},
    {.name = "enable_cpu_affinity",
     .kind = Kind::kFlag,
     .initial = "false",
     .since = Version::k1_0},
    {.name = "fp8_config", .kind = Kind::kMap, .initial = "{}", .since = Version::k1_0},
    {.name = "deepspeed_config", .kind = Kind::kMap, .initial = "{}", .is_in_document = true},
    {.name = "fsdp_config", .kind = Kind::kMap, .initial = "{}", .is_in_document = true},
    {.name = "parallelism_config", .kind = Kind::kMap, .initial = "{}", .since = Version::k1_15},
    {.name = "megatron_lm_config", .kind = Kind::kMap, .initial = "{}", .is_in_document = true},
    {.name = "ipex_config",
     .kind = Kind::kMap,
     .initial = "{}",
     .since = Version::k0_27,
     .until = Version::k1_0},
    {.name = "mpirun_config", .kind = Kind::kMap, .initial = "{}", .since = Version::k1_0},
    {.name = "dynamo_config", .kind = Kind::kMap, .initial = "{}", .since = Version::k0_27},
    {.name = "downcast_bf16", .kind = Kind::kAny, .initial = "false", .is_in_document = true},
    {.name = "tpu_name", .kind = Kind::kText, .initial = "null"},
    {.name = "tpu_zone", .kind = Kind::kText, .initial = "null"},
    {.name = "tpu_use_cluster", .kind = Kind::kFlag, .initial = "false", .since = Version::k0_27},
    {.name = "tpu_use_sudo", .kind = Kind::kFlag, .initial = "false", .since = Version::k0_27},
    {.name = "tpu_vm", .kind = Kind::kAny, .initial = "null", .since = Version::k0_27},
    {.name = "tpu_env", .kind = Kind::kAny, .initial = "null", .since = Version::k0_27},
    {.name = "command_file", .kind = Kind::kAny, .initial = "null"},
    {.name = "commands", .kind = Kind::kAny, .initial = "null"},
};

// Older keys that other keys replaced.
constexpr const char* kLegacyKeys[] = {"fp16", "dynamo_backend"};

constexpr const char* kDistributedTypes[] = {"NO",         "MULTI_CPU",    "MULTI_GPU", "MULTI_NPU",
                                             "MULTI_MLU",  "MULTI_MUSA",   "MULTI_XPU", "MULTI_HPU",
                                             "MULTI_SDAA", "MULTI_NEURON", "DEEPSPEED", "FSDP",
                                             "XLA",        "MEGATRON_LM",  "TPU",       "MPS"};
constexpr const char* kMixedPrecisions[] = {"no", "fp16", "bf16", "fp8"};

template <size_t N>
bool is_one_of(const std::string& text, const char* const (&words)[N]) {
  return std::find(std::begin(words), std::end(words), text) != std::end(words);
}

const Key* find_key(const std::string& name) {
  const Key* const found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                        [&](const Key& k) { return k.name == name; });
  return found == std::end(kKeys) ? nullptr : found;
}

// The value in the type of its key; nothing if it has another type.
std::optional<json> converted(const json& value, Kind kind) {
  switch (kind) {
    case Kind::kAny:
      return value;
    case Kind::kMap:
      if (value.is_null()) return json::object();
      return value.is_object() ? std::optional(value) : std::nullopt;
    case Kind::kFlag:
      return value.is_boolean() ? std::optional(value) : std::nullopt;
    case Kind::kInteger:
      if (value.is_string()) {
        const std::optional<int64_t> number = integer_of(value.get<std::string>());
        return number ? std::optional(json(*number)) : std::nullopt;
      }
      return value.is_number_integer() ? std::optional(value) : std::nullopt;
    case Kind::kText:
      if (value.is_number_integer()) return json(value.dump());  // gpu_ids: 0
      return value.is_string() ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "a text";
    case Kind::kInteger:
      return "an integer";
    case Kind::kFlag:
      return "true or false";
    case Kind::kMap:
      return "a map of keys and values";
    case Kind::kAny:
      break;
  }
  return "a value";
}

// `no` and `NO` without quotes are the boolean false in YAML 1.1.
json meant_by(const std::string& key, const json& value) {
  if (value == false && key == "mixed_precision") return "no";
  if (value == false && key == "distributed_type") return "NO";
  return value;
}

void read_legacy(const json& file, ClusterConfig& config, std::vector<std::string>& problems) {
  if (file.contains("fp16") && config.values["mixed_precision"].is_null()) {
    if (!file["fp16"].is_boolean()) {
      problems.push_back(
          fmt::format("fp16 is {}; it must be true or false", shortened_json(file["fp16"])));
    } else {
      config.values["mixed_precision"] = file["fp16"].get<bool>() ? "fp16" : "no";
    }
  }
  if (file.contains("dynamo_backend") && config.map("dynamo_config").empty()) {
    const json& backend = file["dynamo_backend"];
    const bool is_off = backend == false || backend == "NO" || backend.is_null();
    if (!is_off) config.values["dynamo_config"] = {{"dynamo_backend", backend}};
  }
}

void check_words(const ClusterConfig& config, std::vector<std::string>& problems) {
  const std::string environment = config.text("compute_environment");
  if (environment != "LOCAL_MACHINE") {
    problems.push_back(fmt::format(
        "compute_environment is {}; only LOCAL_MACHINE can be launched from here", environment));
  }
  const std::string type = config.text("distributed_type");
  if (!type.empty() && !is_one_of(type, kDistributedTypes)) {
    problems.push_back(fmt::format("distributed_type is {}; use one of {}", type,
                                   fmt::join(kDistributedTypes, ", ")));
  }
  const std::string precision = config.text("mixed_precision");
  if (!precision.empty() && !is_one_of(precision, kMixedPrecisions)) {
    problems.push_back(fmt::format("mixed_precision is {}; use one of {}", precision,
                                   fmt::join(kMixedPrecisions, ", ")));
  }
}

// The values that a version writes, in the order of their names.
json written_values(const ClusterConfig& config, Version version) {
  json written = json::object();
  for (const Key& key : kKeys) {
    if (version < key.since || version > key.until) continue;
    const json& value = config.values.at(key.name);
    const bool is_empty = value.is_null() || (value.is_object() && value.empty());
    const bool is_kept_empty = version == Version::k0_14 && key.is_in_document;
    if (!is_empty || is_kept_empty) written[key.name] = value;
  }
  return written;
}

}  // namespace

std::string ClusterConfig::text(const char* key) const {
  const json& value = values.at(key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

int64_t ClusterConfig::integer(const char* key) const {
  const json& value = values.at(key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

bool ClusterConfig::flag(const char* key) const { return values.at(key) == true; }

ClusterConfig default_cluster_config() {
  ClusterConfig config{json::object()};
  for (const Key& key : kKeys) config.values[key.name] = json::parse(key.initial);
  return config;
}

ClusterConfig cluster_config_of(const json& file, const std::string& source, bool is_strict,
                                std::vector<std::string>& warnings) {
  if (!file.is_object()) {
    throw FormatError(
        fmt::format("{}: holds no map of keys and values; write one with megatron config", source));
  }
  ClusterConfig config = default_cluster_config();
  std::vector<std::string> problems;
  std::vector<std::string> unknown;
  for (const auto& [name, typed] : file.items()) {
    const Key* const key = find_key(name);
    if (key == nullptr) {
      if (!is_one_of(name, kLegacyKeys)) unknown.push_back(name);
      continue;
    }
    const json value = meant_by(name, typed);
    if (value.is_null() && key->kind != Kind::kMap) continue;
    if (const std::optional<json> fitting = converted(value, key->kind)) {
      config.values[name] = *fitting;
    } else {
      problems.push_back(
          fmt::format("{} is {}; it must be {}", name, shortened_json(value), name_of(key->kind)));
    }
  }
  read_legacy(file, config, problems);
  check_words(config, problems);
  if (config.values["distributed_type"].is_null()) {
    problems.emplace_back("distributed_type is missing; for example distributed_type: MEGATRON_LM");
  }
  if (!unknown.empty()) {
    const std::string sentence = fmt::format("unknown keys {}", fmt::join(unknown, ", "));
    if (is_strict) {
      problems.push_back(sentence + "; remove them");
    } else {
      warnings.push_back(fmt::format("{}: {} have no effect", source, sentence));
    }
  }
  if (problems.empty()) return config;
  for (std::string& problem : problems) problem = fmt::format("{}: {}", source, problem);
  throw FormatError(fmt::format("{}", fmt::join(problems, "\n")));
}

std::vector<std::string> problems(const ClusterConfig& config) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string sentence) {
    if (!holds) found.push_back(std::move(sentence));
  };
  const int64_t processes = config.integer("num_processes");
  const int64_t machines = config.integer("num_machines");
  const int64_t rank = config.integer("machine_rank");
  require(processes >= 1, fmt::format("num_processes is {}; it must be at least 1", processes));
  require(machines >= 1, fmt::format("num_machines is {}; it must be at least 1", machines));
  if (!found.empty()) return found;
  require(processes % machines == 0,
          fmt::format("num_processes {} must be a multiple of num_machines {}: every machine gets "
                      "equally many",
                      processes, machines));
  require(rank >= 0 && rank < machines,
          fmt::format("machine_rank {} must be between 0 and {}", rank, machines - 1));
  require(config.text("distributed_type") != "MULTI_GPU" || processes > 1,
          "distributed_type MULTI_GPU needs at least 2 processes; with one, use "
          "distributed_type NO");
  if (!config.uses_megatron()) return found;
  const auto degree = [&](const char* key) {
    const json value = config.map("megatron_lm_config").value(key, json(1));
    if (value.is_number_integer() && value.get<int64_t>() >= 1) return value.get<int64_t>();
    found.push_back(
        fmt::format("{} is {}; it must be an integer of at least 1", key, shortened_json(value)));
    return int64_t{1};
  };
  const int64_t tensor = degree("megatron_lm_tp_degree");
  const int64_t pipeline = degree("megatron_lm_pp_degree");
  require(processes % (tensor * pipeline) == 0,
          fmt::format("num_processes {} must be a multiple of megatron_lm_tp_degree {} times "
                      "megatron_lm_pp_degree {}",
                      processes, tensor, pipeline));
  return found;
}

std::string yaml_file(const ClusterConfig& config, AccelerateVersion version) {
  if constexpr (kHasYaml) {
    return yaml_text(written_values(config, version));
  } else {
    refuse_missing("YAML", "MG_YAML");
  }
}

std::string json_file(const ClusterConfig& config, AccelerateVersion version) {
  return written_values(config, version).dump(2, ' ', true) + "\n";
}

}  // namespace megatron::frontends
