#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace megatron {

// A log file of a run. It grows by whole records, immediately visible to readers. A record that
// cannot be written (a full disk) is dropped and does not end the run: the first failure warns,
// later records are tried again, and a second warning counts the dropped ones.
class AppendFile {
 public:
  // Opens or creates `path` and the directories above it. Throws IoError, which begins with `flag`
  // ("--metrics-jsonl"), on failure.
  AppendFile(std::filesystem::path path, std::string flag);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  bool open();
  bool write(std::string_view record);

  std::filesystem::path path_;
  std::string flag_;
  int descriptor_ = -1;
  int64_t lost_ = 0;  // records since the last one that was written
};

}  // namespace megatron
