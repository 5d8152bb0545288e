#include "megatron/checkpoint/load.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw FormatError(
      fmt::format("{}: {}; the checkpoint is damaged, load an earlier one "
                  "(--ckpt-step) or copy this one again",
                  file.string(), what));
}

// The files of one checkpoint, mapped at first use and shared by the pieces. Thread safe.
class NativeFiles {
 public:
  explicit NativeFiles(fs::path directory)
      : directory_(std::move(directory)), manifest_(read_manifest(directory_)) {}

  const Manifest& manifest() const { return manifest_; }

  ArgMap args() const {
    const fs::path path = directory_ / kArgsFile;
    const std::string text = read_text(path);
    const auto record = manifest_.files.find(kArgsFile);
    if (record == manifest_.files.end() ||
        record->second.crc != crc32c(std::as_bytes(std::span(text)))) {
      damaged(path, "the bytes are not those that were saved");
    }
    return parse_args(text, path);
  }

  ConstView checked_chunk(const std::string& tensor, DType dtype, const Manifest::Chunk& chunk) {
    const SafetensorsFile& file = opened(chunk.file);
    const SafetensorsFile::Entry* found = file.find(chunk.key);
    if (found == nullptr || found->spec.dtype != dtype ||
        !(found->spec.shape == chunk.region.shape)) {
      damaged(file.path(), fmt::format("entry {} is not the chunk {} of {}", chunk.key,
                                       chunk.region.str(), tensor));
    }
    if (crc32c(bytes_of(found->view)) != chunk.crc) {
      damaged(file.path(), fmt::format("the bytes of chunk {} of {} are not those that were saved",
                                       chunk.region.str(), tensor));
    }
    return found->view;
  }

 private:
  const SafetensorsFile& opened(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto known = files_.find(name);
    if (known != files_.end()) return known->second;
    const fs::path path = directory_ / name;
    const Manifest::File& record = manifest_.files.at(name);
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    if (error) damaged(path, fmt::format("cannot read: {}", error.message()));
    if (bytes != record.bytes) {
      damaged(path, fmt::format("has {} bytes, {} were saved", bytes, record.bytes));
    }
    SafetensorsFile file(path);
    if (file.header_crc() != record.crc) damaged(path, "the header is not the one that was saved");
    return files_.emplace(name, std::move(file)).first->second;
  }

  fs::path directory_;
  Manifest manifest_;
  std::mutex mutex_;
  std::map<std::string, SafetensorsFile> files_;  // nodes stay where they are
};

}  // namespace

CheckpointContents open_checkpoint(const fs::path& directory) {
  const auto files = std::make_shared<NativeFiles>(directory);
  const Manifest& manifest = files->manifest();
  CheckpointContents contents;
  contents.directory = directory;
  contents.iteration = manifest.iteration;
  contents.consumed_train_samples = manifest.consumed_train_samples;
  contents.consumed_valid_samples = manifest.consumed_valid_samples;
  contents.scalars = manifest.scalars;
  contents.args = files->args();
  for (const auto& [section, records] : manifest.sections) {
    StoredSection& stored = contents.sections[section];
    for (const auto& [name, record] : records) {
      if (record.hash) {
        contents.hashes[section][name] = {counted_shape(name, record.shape, contents.args),
                                          record.dtype, *record.hash};
      }
      StoredTensor& tensor = stored[name];
      tensor.shape = record.shape;
      tensor.dtype = record.dtype;
      for (const Manifest::Chunk& chunk : record.chunks) {
        tensor.pieces.push_back(
            {chunk.region, [files, name = &name, dtype = record.dtype, chunk = &chunk] {
               const ConstView view = files->checked_chunk(*name, dtype, *chunk);
               return FileElements{view, {}, lease_of(view)};
             }});
      }
    }
  }
  return contents;
}

void load_checkpoint(const fs::path& iteration_directory, CheckpointState& state,
                     const LoadOptions& options) {
  load_checkpoint(open_checkpoint(iteration_directory), state, options);
}

}  // namespace megatron
