#include "megatron/checkpoint/commit.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {

namespace {

namespace fs = std::filesystem;

// The place of a checkpoint, unless another format has it.
fs::path place_of_format(fs::path place, CheckpointFormat format) {
  if (!fs::exists(place) || format_of(place) == format) return place;
  throw IoError(
      fmt::format("{}: exists and is not a checkpoint of the format {}; move it "
                  "away or choose another --save",
                  place.string(), name_of(format)));
}

void name_in_tracker(const fs::path& directory) {
  const fs::path tracker = directory / kTrackerFile;
  std::error_code error;
  fs::rename(directory / kNextTrackerFile, tracker, error);
  if (error) {
    throw IoError(fmt::format("{}: cannot be replaced: {}", tracker.string(), error.message()));
  }
  sync_directory(directory);
}

}  // namespace

UnfinishedCheckpoint::UnfinishedCheckpoint(const fs::path& directory, const fs::path& name,
                                           CheckpointFormat format)
    : directory_(directory), folder_(place_of_format(directory / name, format)) {}

void UnfinishedCheckpoint::commit(const std::string& tracker) {
  write_text_atomically(directory_ / kNextTrackerFile, tracker);
  folder_.commit();
  name_in_tracker(directory_);
}

void commit_checkpoint(const fs::path& directory, const fs::path& name, CheckpointFormat format,
                       const std::string& tracker,
                       const std::function<void(const fs::path&)>& write) {
  UnfinishedCheckpoint unfinished(directory, name, format);
  write(unfinished.path());
  unfinished.commit(tracker);
}

}  // namespace megatron
