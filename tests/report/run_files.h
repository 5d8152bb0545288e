#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace megatron::report {

// A folder for logs of runs, which dies with the object.
class RunFiles {
 public:
  std::string path(const std::string& name = {}) const {
    return (directory_.path() / name).string();
  }
  // Writes a file, with the folders of its name; returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace megatron::report
