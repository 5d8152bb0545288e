#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace megatron::kernels {

// What measurements on this machine decided, kept in a text file so that later runs need not
// measure again and decide the same. A line is "<checksum>\t<question>\t<answer>"; neither text may
// hold a tab or the end of a line. Processes may share the file: each write adds to what is there,
// under a lock ("<path>.lock"), and replaces the file as a whole. Lines that are damaged are
// ignored with a warning and left out by the next write. A file that cannot be read or written
// costs a warning: the answers then live as long as the object. Thread safe.
class ChoiceFile {
 public:
  explicit ChoiceFile(std::filesystem::path path);

  std::optional<std::string> find(const std::string& question) const;
  // Stores and returns `answer`, or returns the one that another thread or process stored first.
  std::string remember(const std::string& question, const std::string& answer);

 private:
  // Adds the file's answers to those that are here.
  void merge();
  void save() const;

  const std::filesystem::path path_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> answers_;
  bool has_warned_ = false;
};

// $XDG_CACHE_HOME/megatron, or ~/.cache/megatron; empty where neither variable is an absolute path.
std::filesystem::path cache_directory();

}  // namespace megatron::kernels
