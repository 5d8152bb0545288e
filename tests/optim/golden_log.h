#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>
#include "tests/support/source_path.h"

namespace megatron {

// One line of Megatron-LM's log.
struct LoggedIteration {
  std::string line;

  // The text between "<name>: " and " |".
  std::string text(const std::string& name) const {
    const size_t at = line.find(" " + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = line.find_first_not_of(' ', at + name.size() + 3);
    return line.substr(begin, line.find(" |", begin) - begin);
  }
  double number(const std::string& name) const { return std::stod(text(name)); }
};

// The logged iterations of a run of Megatron-LM core_r0.5.0.
inline std::vector<LoggedIteration> logged_iterations(const std::string& run) {
  std::ifstream file(source_path("tests/golden/megatron/") + run + "/iterations.txt");
  std::vector<LoggedIteration> iterations;
  for (std::string line; std::getline(file, line);) iterations.push_back({line});
  EXPECT_EQ(iterations.size(), 20u);
  return iterations;
}

}  // namespace megatron
