#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace megatron {

// A directory of the running test, removed at its end.
class TemporaryFiles {
 public:
  TemporaryFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "megatron-test-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~TemporaryFiles() { std::filesystem::remove_all(directory_); }
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;

  std::filesystem::path path(const std::string& name) const { return directory_ / name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name).string();
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace megatron
