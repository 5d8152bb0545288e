#include "annex/accelerate/config_file.h"

#include <fmt/format.h>

#include <cstdlib>

#include "annex/accelerate/yaml.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/core/parts.h"

namespace megatron::frontends {
namespace {

// Empty if the variable is not set.
std::filesystem::path environment_path(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_json(const std::filesystem::path& path) { return path.extension() == ".json"; }

nlohmann::json parsed(const std::filesystem::path& path, const std::string& text) {
  if (is_json(path)) return parse_json(text, {}, path.string());
  if constexpr (kHasYaml) {
    return read_yaml(text, path.string());
  } else {
    refuse_missing("YAML", "MG_YAML");
  }
}

}  // namespace

std::filesystem::path default_config_path() {
  std::filesystem::path home = environment_path("HF_HOME");
  if (home.empty()) {
    std::filesystem::path cache = environment_path("XDG_CACHE_HOME");
    if (cache.empty()) cache = environment_path("HOME") / ".cache";
    home = cache / "huggingface";
  }
  return home / "accelerate" / "default_config.yaml";
}

ClusterConfig load_cluster_config(const std::filesystem::path& path, bool is_strict,
                                  std::vector<std::string>& warnings) {
  return cluster_config_of(parsed(path, read_text(path)), path.string(), is_strict, warnings);
}

void save_cluster_config(const ClusterConfig& config, const std::filesystem::path& path,
                         AccelerateVersion version) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  write_text_atomically(path,
                        is_json(path) ? json_file(config, version) : yaml_file(config, version));
}

}  // namespace megatron::frontends
