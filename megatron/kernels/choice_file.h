#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace megatron::kernels {

// What measurements on this machine decided, kept in a text file so that later runs need not
// measure again and decide the same. A line is "<checksum>\t<question>\t<answer>"; neither text may
// hold a tab or the end of a line. Processes may share the file: each adds a line to what is there,
// under a lock ("<path>.lock"), and does not wait for the disk. Lines that are damaged, such as one
// that a crash cut off, are ignored with a warning; the next write replaces the file by one without
// them. A file that cannot be read or written, or whose lock another process holds for too long,
// costs a warning: the answers then live as long as the object. Thread safe.
class ChoiceFile {
 public:
  explicit ChoiceFile(std::filesystem::path path,
                      std::chrono::milliseconds patience = std::chrono::seconds(2));

  std::optional<std::string> find(const std::string& question) const;
  // Stores and returns `answer`, or returns the one that another thread or process stored first.
  std::string remember(const std::string& question, const std::string& answer);

 private:
  // Adds the file's answers to those that are here. Warns of damaged lines.
  void merge();
  // Adds a line to the file.
  void append(const std::string& question, const std::string& answer) const;
  // Replaces the file by what is known here.
  void rewrite() const;

  const std::filesystem::path path_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> answers_;
  bool is_damaged_ = false;  // the file, when it was read last
  bool has_warned_ = false;
};

// $XDG_CACHE_HOME/megatron, or ~/.cache/megatron; empty where neither variable is an absolute path.
std::filesystem::path cache_directory();

}  // namespace megatron::kernels
