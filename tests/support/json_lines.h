#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/source_path.h"

namespace megatron::frontends {

// The lines of tests/golden/<name>, one JSON value each.
inline std::vector<nlohmann::json> golden_lines(const std::string& name) {
  std::ifstream file(source_path("tests/golden/" + name));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace megatron::frontends
