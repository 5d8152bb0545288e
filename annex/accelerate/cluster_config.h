#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "annex/accelerate/version.h"

namespace megatron::frontends {

// Accelerate's cluster configuration, written by `accelerate config` and read by `accelerate
// launch`. `values` has every key of the schema; null or an empty map if it is not set.
struct ClusterConfig {
  nlohmann::json values;

  std::string text(const char* key) const;  // empty if null
  int64_t integer(const char* key) const;   // 0 if null
  bool flag(const char* key) const;
  const nlohmann::json& map(const char* key) const { return values.at(key); }

  bool uses_megatron() const { return text("distributed_type") == "MEGATRON_LM"; }
};

// The config in which only defaults are set; `distributed_type` and `num_processes` are null.
ClusterConfig default_cluster_config();

// Completes the contents of a file. Accepts the keys of all versions, numbers written as text, the
// YAML 1.1 booleans in `mixed_precision` and `distributed_type`, and the older keys `fp16` and
// `dynamo_backend`. Throws FormatError with every problem, one sentence each. Keys that no version
// has are problems if `is_strict`, otherwise warnings.
ClusterConfig cluster_config_of(const nlohmann::json& file, const std::string& source,
                                bool is_strict, std::vector<std::string>& warnings);

// Problems of the numbers in a complete config, one sentence each.
std::vector<std::string> problems(const ClusterConfig& config);

// The text of the file that a version writes.
std::string yaml_file(const ClusterConfig& config, AccelerateVersion version);
std::string json_file(const ClusterConfig& config, AccelerateVersion version);

}  // namespace megatron::frontends
