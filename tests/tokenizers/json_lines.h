#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megatron {

// The objects of a file, one per line.
inline std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> objects;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

}  // namespace megatron
