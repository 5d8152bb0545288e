#include "megatron/training/csv_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFlag = "--csv-dir";

std::string file_name_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '/'; }, '_');
  return name + ".csv";
}

}  // namespace

CsvFolder::CsvFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  const char* const attempt = error ? "create the directory" : "write";
  if (!error && ::access(folder_.c_str(), W_OK | X_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  throw IoError(fmt::format("{} {}: cannot {}: {}; choose a place in which this user may write",
                            kFlag, folder_.string(), attempt, error.message()));
}

// A resumed run appends to its files. A file that cannot be opened loses its numbers, but does not
// stop the run.
AppendFile* CsvFolder::file_of(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second.get();
  std::unique_ptr<AppendFile>& file = files_[name];
  try {
    const fs::path path = folder_ / file_name_of(name);
    file = std::make_unique<AppendFile>(path, kFlag);
    if (fs::file_size(path) == 0) file->append(fmt::format("step,{}\n", name));
  } catch (const std::exception& error) {
    warn(fmt::format("{}; the run continues without it", error.what()));
  }
  return file.get();
}

void CsvFolder::write(int64_t iteration, const NamedValues& values) {
  for (const auto& [name, value] : values) {
    if (AppendFile* const file = file_of(name)) {
      file->append(fmt::format("{},{}\n", iteration, value));
    }
  }
}

}  // namespace megatron
