#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace megatron {

// Looks up an environment variable, as std::getenv does.
using EnvironmentLookup = std::function<const char*(const char*)>;
const char* own_environment(const char* name);

// The folder or file that names a model, or a data set: a path, or else a name ("gpt2",
// "org/model") that Hugging Face's tools have downloaded into their cache (HF_HUB_CACHE, HF_HOME,
// XDG_CACHE_HOME, HOME). Throws ConfigError, which begins with `flag`, if there is neither.
std::filesystem::path model_path(const std::string& name, const char* flag,
                                 const EnvironmentLookup& variable = own_environment);
std::filesystem::path dataset_path(const std::string& name, const char* flag,
                                   const EnvironmentLookup& variable = own_environment);

// The same, but nothing in place of ConfigError.
std::optional<std::filesystem::path> find_model_path(
    const std::string& name, const EnvironmentLookup& variable = own_environment);

}  // namespace megatron
