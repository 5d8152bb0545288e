#include "megatron/core/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReplaced = "-replaced";

[[noreturn]] void fail_on_folder(const fs::path& path, const char* what,
                                 const std::error_code& error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), what, error.message()));
}

// Process ids would repeat: in containers every program may have id 1.
fs::path random_name_beside(const fs::path& place) {
  std::random_device random;
  const uint64_t bits = (uint64_t{random()} << 32) | random();
  return place.string() + fmt::format(".tmp-{:016x}", bits);
}

bool is_replaced_name(const fs::path& path) { return path.string().ends_with(kReplaced); }

std::vector<fs::path> unfinished_folders(const fs::path& place) {
  std::vector<fs::path> found;
  const fs::path parent = place.has_parent_path() ? place.parent_path() : fs::path(".");
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (is_unfinished_name(entry.path(), place)) found.push_back(entry.path());
  }
  return found;
}

// Puts back the folder that a program was about to replace when it was stopped. Its present path if
// that is not allowed; none if there is no such folder.
std::optional<fs::path> put_back(const fs::path& place) {
  for (const fs::path& path : unfinished_folders(place)) {
    if (!is_replaced_name(path)) continue;
    std::error_code error;
    fs::rename(path, place, error);
    // Another rank or reader may have put it back.
    return error && !fs::exists(place) ? path : place;
  }
  return std::nullopt;
}

}  // namespace

bool is_unfinished_name(const fs::path& entry, const fs::path& place) {
  return entry.filename().string().starts_with(place.filename().string() + ".tmp-");
}

void remove_unfinished_folders(const fs::path& place) {
  if (!fs::exists(place)) put_back(place);
  for (const fs::path& path : unfinished_folders(place)) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_on_folder(path, "delete the rest of an interrupted save", error);
  }
}

fs::path restored_folder(const fs::path& place) {
  if (fs::exists(place)) return place;
  return put_back(place).value_or(place);
}

UnfinishedFolder::UnfinishedFolder(fs::path place) : place_(std::move(place)) {
  remove_unfinished_folders(place_);
  path_ = random_name_beside(place_);
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) fail_on_folder(path_, "create the directory", error);
}

UnfinishedFolder::~UnfinishedFolder() {
  if (path_.empty()) return;
  std::error_code error;
  fs::remove_all(path_, error);
  if (!error || !is_committed_) return;
  warn(fmt::format("{}: the replaced folder cannot be deleted: {}; the next run there tries again",
                   path_.string(), error.message()));
}

void UnfinishedFolder::commit() {
  sync_directory(path_);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path_)) {
    if (entry.is_directory()) sync_directory(entry.path());
  }
  const bool replaces = fs::exists(place_);
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  std::error_code error;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, place_.c_str(), flags) != 0) {
    if (replaces) {
      replace_by_two_renames();
    } else {
      fs::rename(path_, place_, error);
      if (error) fail_on_folder(path_, "rename into place", error);
    }
  }
  // If this fails, the replaced folder stays: a power cut may bring its name back.
  const fs::path replaced = std::exchange(path_, {});
  sync_directory(fs::absolute(place_).parent_path());
  is_committed_ = true;
  if (replaces) path_ = replaced;
}

// For file systems that cannot exchange two names.
void UnfinishedFolder::replace_by_two_renames() {
  const fs::path aside = path_.string() + std::string(kReplaced);
  std::error_code error;
  fs::rename(place_, aside, error);
  if (error) fail_on_folder(place_, "rename out of the way", error);
  fs::rename(path_, place_, error);
  if (error) {
    std::error_code ignored;  // then restored_folder() does it
    fs::rename(aside, place_, ignored);
    fail_on_folder(path_, "rename into place", error);
  }
  path_ = aside;
}

}  // namespace megatron
