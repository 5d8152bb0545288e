#include "megatron/core/hub_cache.h"

#include <fmt/format.h>

#include <cstdlib>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

fs::path hub_cache(const EnvironmentLookup& variable) {
  const auto folder = [&](const char* name) {
    const char* const value = variable(name);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  if (const fs::path cache = folder("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = folder("HF_HOME"); !home.empty()) return home / "hub";
  const fs::path cache = folder("XDG_CACHE_HOME");
  return (cache.empty() ? folder("HOME") / ".cache" : cache) / "huggingface" / "hub";
}

// "model", "org/name" -> "models--org--name"
std::string folder_of(const char* kind, std::string name) {
  for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at)) {
    name.replace(at, 1, "--");
  }
  return fmt::format("{}s--{}", kind, name);
}

std::optional<fs::path> find_path(const char* kind, const std::string& name,
                                  const EnvironmentLookup& variable) {
  if (fs::exists(name)) return name;
  const fs::path folder = hub_cache(variable) / folder_of(kind, name);
  const fs::path reference = folder / "refs" / "main";
  if (!fs::exists(reference)) return std::nullopt;
  std::string revision = read_text(reference);
  revision.erase(revision.find_last_not_of(" \r\n") + 1);
  const fs::path snapshot = folder / "snapshots" / revision;
  return fs::exists(snapshot) ? std::optional(snapshot) : std::nullopt;
}

fs::path path_of(const char* kind, const char* what, const std::string& name, const char* flag,
                 const EnvironmentLookup& variable) {
  if (const std::optional<fs::path> found = find_path(kind, name, variable)) return *found;
  throw ConfigError(
      fmt::format("{0} {1}: there is no such file or folder, and no {2} of that name in {3}; "
                  "download the {2} there with Hugging Face's tools, or give the path of its "
                  "folder",
                  flag, name, what, hub_cache(variable).string()));
}

}  // namespace

const char* own_environment(const char* name) { return std::getenv(name); }

fs::path model_path(const std::string& name, const char* flag, const EnvironmentLookup& variable) {
  return path_of("model", "model", name, flag, variable);
}

fs::path dataset_path(const std::string& name, const char* flag,
                      const EnvironmentLookup& variable) {
  return path_of("dataset", "data set", name, flag, variable);
}

std::optional<fs::path> find_model_path(const std::string& name,
                                        const EnvironmentLookup& variable) {
  return find_path("model", name, variable);
}

}  // namespace megatron
