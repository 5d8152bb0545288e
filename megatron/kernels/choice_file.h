#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace megatron::kernels {

// A persistent cache of measurements on this machine, as a text file: later runs read them instead
// of measuring again, and so choose the same algorithms. A line is
// "<checksum>\t<question>\t<answer>"; question and answer contain no tab and no line end. Processes
// may share the file: each appends a line under a lock ("<path>.lock") and does not wait for the
// disk. Damaged lines, for example after a crash, are ignored with a warning; the next write
// replaces the file by one without them. If the file cannot be read or written, or another process
// holds the lock too long, a warning follows and the answers live as long as the object. Thread
// safe.
class ChoiceFile {
 public:
  explicit ChoiceFile(std::filesystem::path path,
                      std::chrono::milliseconds patience = std::chrono::seconds(2));

  std::optional<std::string> find(const std::string& question) const;
  // Stores and returns `answer`, or returns the answer that another thread or process stored first.
  std::string remember(const std::string& question, const std::string& answer);

 private:
  // Adds the file's answers to the known ones. Warns of damaged lines.
  void merge();
  // Adds a line to the file.
  void append(const std::string& question, const std::string& answer) const;
  // Replaces the file by the known answers.
  void rewrite() const;

  const std::filesystem::path path_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> answers_;
  bool is_damaged_ = false;  // the file, at the last read
  bool has_warned_ = false;
};

// $XDG_CACHE_HOME/megatron, or ~/.cache/megatron; empty if neither variable is an absolute path.
std::filesystem::path cache_directory();

}  // namespace megatron::kernels
