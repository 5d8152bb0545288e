#include "megatron/cli/zero_to_fp32.h"

#include <fmt/format.h>

#include <filesystem>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::cli {

std::vector<std::string> words_of_zero_to_fp32(std::span<const std::string> words) {
  std::vector<std::string> paths;
  std::vector<std::string> more;
  std::string tag;
  bool is_safe = false;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    std::string value;
    if (const size_t equals = word.find('='); word.starts_with("--") && equals != word.npos) {
      value = word.substr(equals + 1);
      word.resize(equals);
    }
    const bool takes_value = word == "-t" || word == "--tag" || word == "--max_shard_size";
    if (takes_value && value.empty()) {
      if (i + 1 == words.size()) throw ConfigError(fmt::format("{} needs a value", word));
      value = words[++i];
    }
    if (word == "--help" || word == "-h") return {"--help"};
    if (takes_value && word != "--max_shard_size") {
      tag = value;
    } else if (word == "--safe_serialization") {
      is_safe = true;
    } else if (word == "--exclude_frozen_parameters" || word == "-d" || word == "--debug") {
      warn(fmt::format("{} has no effect", word));
    } else if (!word.starts_with('-') && paths.size() < 2) {
      paths.push_back(word);
    } else {
      more.push_back(word);
      if (!value.empty()) more.push_back(value);
    }
  }
  if (paths.size() != 2) {
    throw ConfigError(fmt::format(
        "zero_to_fp32.py takes two paths, the directory of the checkpoint and that of the model to "
        "write, not {}",
        paths.size()));
  }
  const std::filesystem::path checkpoint = tag.empty() ? paths[0] : paths[0] + "/" + tag;
  if (paths[1].ends_with(".bin")) {
    throw ConfigError(fmt::format(
        "{} must be a directory: config.json and pytorch_model.bin are written into it", paths[1]));
  }
  std::vector<std::string> conversion = {
      "--load-dir", checkpoint.string(),     "--save-dir", paths[1],        "--saver",
      "hf",         "--target_params_dtype", "fp32",       "--no-optimizer"};
  if (!is_safe) conversion.emplace_back("--no-safe-serialization");
  conversion.insert(conversion.end(), more.begin(), more.end());
  return conversion;
}

}  // namespace megatron::cli
