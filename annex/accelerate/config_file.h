#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "annex/accelerate/cluster_config.h"

namespace megatron::frontends {

// The file that Accelerate uses if no other is named: default_config.yaml in $HF_HOME/accelerate,
// else in ${XDG_CACHE_HOME:-~/.cache}/huggingface/accelerate.
std::filesystem::path default_config_path();

// Reads YAML, or JSON if the name ends in .json. Throws IoError and FormatError.
ClusterConfig load_cluster_config(const std::filesystem::path& path, bool is_strict,
                                  std::vector<std::string>& warnings);

// Writes JSON if the name ends in .json, else YAML; creates the folder.
void save_cluster_config(const ClusterConfig& config, const std::filesystem::path& path,
                         AccelerateVersion version);

}  // namespace megatron::frontends
