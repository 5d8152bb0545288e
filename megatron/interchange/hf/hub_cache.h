#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace megatron {

// The folder or file that names a model, or a data set: a path, or else a name ("gpt2",
// "org/model") that Hugging Face's tools have downloaded into their cache (HF_HUB_CACHE, HF_HOME,
// XDG_CACHE_HOME, HOME). `variable` is getenv. Throws ConfigError, which begins with `flag`, if
// there is neither.
std::filesystem::path model_path(const std::string& name, const char* flag,
                                 const std::function<const char*(const char*)>& variable);
std::filesystem::path dataset_path(const std::string& name, const char* flag,
                                   const std::function<const char*(const char*)>& variable);

}  // namespace megatron
