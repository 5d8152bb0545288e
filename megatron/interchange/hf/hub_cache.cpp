#include "megatron/interchange/hf/hub_cache.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using Variable = std::function<const char*(const char*)>;

fs::path hub_cache(const Variable& variable) {
  const auto folder = [&](const char* name) {
    const char* const value = variable(name);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  if (const fs::path cache = folder("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = folder("HF_HOME"); !home.empty()) return home / "hub";
  const fs::path cache = folder("XDG_CACHE_HOME");
  return (cache.empty() ? folder("HOME") / ".cache" : cache) / "huggingface" / "hub";
}

// "org/model" -> "models--org--model"
std::string folder_of(std::string name) {
  for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at)) {
    name.replace(at, 1, "--");
  }
  return "models--" + name;
}

}  // namespace

fs::path model_path(const std::string& name, const char* flag, const Variable& variable) {
  if (fs::exists(name)) return name;
  const fs::path model = hub_cache(variable) / folder_of(name);
  const fs::path reference = model / "refs" / "main";
  if (fs::exists(reference)) {
    std::string revision = read_text(reference);
    revision.erase(revision.find_last_not_of(" \r\n") + 1);
    if (const fs::path snapshot = model / "snapshots" / revision; fs::exists(snapshot)) {
      return snapshot;
    }
  }
  throw ConfigError(
      fmt::format("{} {}: there is no such file or folder, and no model of that name in {}; "
                  "download the model there with Hugging Face's tools, or give the path of its "
                  "folder",
                  flag, name, hub_cache(variable).string()));
}

}  // namespace megatron
