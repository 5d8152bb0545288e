#include "megatron/checkpoint/commit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <system_error>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {

namespace fs = std::filesystem;

UnfinishedCheckpoint::UnfinishedCheckpoint(const fs::path& directory, const fs::path& name,
                                           CheckpointFormat format)
    : directory_(directory), final_(directory / name), path_(final_) {
  path_ += fmt::format(".tmp-{}", ::getpid());
  if (fs::exists(final_) && format_of(final_) != format) {
    throw IoError(
        fmt::format("{}: exists and is not a checkpoint of the format {}; move it "
                    "away or choose another --save",
                    final_.string(), name_of(format)));
  }
  std::error_code error;
  fs::remove_all(path_, error);
  if (!error) fs::create_directories(path_, error);
  if (error) {
    throw IoError(
        fmt::format("{}: cannot create the directory: {}", path_.string(), error.message()));
  }
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void UnfinishedCheckpoint::put_in_place() {
  sync_directory(path_);
  const bool replaces = fs::exists(final_);
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_.c_str(), flags) != 0) {
    rename_plainly(replaces);
  }
  if (!replaces) path_.clear();
  sync_directory(directory_);
}

// For file systems that cannot exchange two names.
void UnfinishedCheckpoint::rename_plainly(bool replaces) {
  const fs::path aside = path_.string() + "-replaced";
  std::error_code error;
  if (replaces) fs::rename(final_, aside, error);
  if (!error) fs::rename(path_, final_, error);
  if (error) {
    throw IoError(fmt::format("{}: cannot rename into place: {}", path_.string(), error.message()));
  }
  path_ = replaces ? aside : fs::path();
}

void UnfinishedCheckpoint::commit(const std::string& tracker) {
  put_in_place();
  write_text_atomically(directory_ / kTrackerFile, tracker);
  sync_directory(directory_);
}

void commit_checkpoint(const fs::path& directory, const fs::path& name, CheckpointFormat format,
                       const std::string& tracker,
                       const std::function<void(const fs::path&)>& write) {
  UnfinishedCheckpoint unfinished(directory, name, format);
  write(unfinished.path());
  unfinished.commit(tracker);
}

}  // namespace megatron
