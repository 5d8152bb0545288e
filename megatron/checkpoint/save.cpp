#include "megatron/checkpoint/save.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <utility>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/comm/working.h"
#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/formats/safetensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// The name of a chunk in its file: the tensor's name, with the offset unless it is the whole
// tensor.
std::string key_of(const std::string& name, const StoredTensor& tensor, const Region& region) {
  if (region.shape == tensor.shape) return name;
  return fmt::format("{}#{}", name, fmt::join(region.offset, ","));
}

// Writes this rank's tensors of one section as one file and adds them to the manifest.
void write_section(const fs::path& directory, const std::string& section,
                   const CheckpointContents& contents, const comm::Group& world,
                   Manifest& manifest) {
  const StoredSection& tensors = contents.sections.at(section);
  if (tensors.empty() && world.size() > 1) return;
  struct Origin {
    const std::string* name;
    const StoredTensor* tensor;
    const TensorPiece* piece;
    size_t number;  // of the tensor
  };
  const std::string file =
      fmt::format("{}-{:05}-of-{:05}.safetensors", section, world.rank(), world.size());
  std::map<std::string, Origin> by_key;
  std::vector<TensorSpec> specs;
  auto& records = manifest.sections[section];
  size_t number = 0;
  for (const auto& [name, tensor] : tensors) {
    records[name] = {tensor.shape, tensor.dtype, {}};
    for (const TensorPiece& piece : tensor.pieces) {
      invariant(is_inside(piece.region, tensor.shape), "a chunk is a part of its tensor");
      specs.push_back({key_of(name, tensor, piece.region), tensor.dtype, piece.region.shape});
      by_key.emplace(specs.back().name, Origin{&name, &tensor, &piece, number});
    }
    ++number;
  }
  // The hashes of a run's tensors are known; those of others are taken on the way.
  const auto known = contents.hashes.find(section);
  const bool is_known = known != contents.hashes.end();
  HashSums sums(is_known ? 0 : tensors.size());
  SafetensorsWriter writer(directory / file, std::move(specs));
  for (const TensorSpec& spec : writer.specs()) {
    const Origin& origin = by_key.at(spec.name);
    FileElements elements = origin.piece->read();
    if (!is_known) {
      add_region(sums, origin.number, elements.view, origin.piece->region,
                 counted_shape(*origin.name, origin.tensor->shape, contents.args), Stream{});
    }
    records.at(*origin.name)
        .chunks.push_back({file, spec.name, origin.piece->region, crc32c(bytes_of(elements.view))});
    writer.write_later(std::move(elements));
  }
  const std::vector<uint64_t> hashes = sums.values();
  number = 0;
  for (const auto& [name, tensor] : tensors) {
    records.at(name).hash = is_known ? known->second.at(name).hash : hashes[number];
    ++number;
  }
  manifest.files[file] = {writer.file_bytes(), writer.header_crc()};
  writer.commit();
}

void write_args(const fs::path& directory, const ArgMap& args, Manifest& manifest) {
  const std::string text = args_text(args);
  write_text_atomically(directory / kArgsFile, text);
  manifest.files[kArgsFile] = {static_cast<int64_t>(text.size()),
                               crc32c(std::as_bytes(std::span(text)))};
}

// Sends all ranks the directory that rank 0 writes to, and returns it.
fs::path announced(const fs::path& unfinished, const comm::Group& world) {
  std::string text = unfinished.string();
  auto size = static_cast<int64_t>(text.size());
  comm::broadcast({&size, {1}, DType::kInt64}, 0, world, Stream{});
  text.resize(static_cast<size_t>(size));
  comm::broadcast({text.data(), {size}, DType::kUInt8}, 0, world, Stream{});
  return text;
}

// Names the checkpoint to load after the save of iteration `failed` failed.
std::string remaining_text(const fs::path& directory, int64_t failed) {
  const std::optional<int64_t> latest = latest_iteration(directory);
  if (!latest) return "there is no earlier checkpoint";
  if (latest == failed) return "a complete checkpoint of it is there, and --load takes that";
  return fmt::format("the checkpoint of iteration {} is unharmed", *latest);
}

}  // namespace

CheckpointTensor whole_tensor(std::string name, Tensor data) {
  const Shape shape = data.shape();
  return {std::move(name), std::move(data), shape,
          std::vector<int64_t>(static_cast<size_t>(shape.rank()), 0)};
}

void save_checkpoint(const fs::path& directory, const CheckpointState& state,
                     const SaveOptions& options, const comm::Group& world) {
  CheckpointContents contents = contents_of(state);
  contents.hashes = hashes_of(state);
  CheckpointWriting writing(directory, std::move(contents), options, world);
  writing.write();
  writing.commit();
}

void save_checkpoint(const fs::path& directory, const CheckpointContents& contents,
                     const SaveOptions& options, const comm::Group& world) {
  CheckpointContents saved = contents;
  saved.hashes.clear();  // its tensors may not be those that were read
  CheckpointWriting writing(directory, std::move(saved), options, world);
  writing.write();
  writing.commit();
}

// A step of saving; its error reports the state of the checkpoints.
template <class Step>
void CheckpointWriting::run(const Step& step) const {
  const comm::Working working(world_, fmt::format("saving iteration {}", contents_.iteration));
  try {
    step();
  } catch (const IoError& error) {
    throw IoError(fmt::format("iteration {} was not saved: {}; {}", contents_.iteration,
                              error.what(), remaining_text(directory_, contents_.iteration)));
  }
}

CheckpointWriting::CheckpointWriting(const fs::path& directory, CheckpointContents contents,
                                     const SaveOptions& options, const comm::Group& world)
    : directory_(directory), contents_(std::move(contents)), options_(options), world_(world) {
  run([&] {
    if (world_.rank() == 0) {
      unfinished_ = std::make_unique<UnfinishedCheckpoint>(
          directory_, iteration_directory_name(contents_.iteration), CheckpointFormat::kNative);
    }
    path_ = announced(unfinished_ ? unfinished_->path() : fs::path(), world_);
  });
}

CheckpointWriting::~CheckpointWriting() = default;

void CheckpointWriting::write() {
  run([&] {
    manifest_.iteration = contents_.iteration;
    manifest_.consumed_train_samples = contents_.consumed_train_samples;
    manifest_.consumed_valid_samples = contents_.consumed_valid_samples;
    manifest_.scalars = contents_.scalars;
    for (const auto& [section, tensors] : contents_.sections) {
      write_section(path_, section, contents_, world_, manifest_);
    }
  });
}

void CheckpointWriting::commit() {
  run([&] {
    if (world_.size() > 1) {
      const std::vector<std::string> parts =
          comm::gathered_on_first(manifest_text(manifest_), world_);
      for (size_t rank = 1; rank < parts.size(); ++rank) {
        merge(manifest_, parse_manifest_part(parts[rank]));
      }
    }
    if (unfinished_) {
      write_args(path_, contents_.args, manifest_);
      write_manifest(path_, manifest_);
      unfinished_->commit(std::to_string(contents_.iteration));
    }
    comm::barrier(world_);  // every rank waits until the checkpoint exists
  });
  if (world_.rank() != 0) return;
  try {
    remove_old_checkpoints(directory_, options_.keep_last, options_.retain_interval,
                           options_.foreign);
  } catch (const Error& error) {
    warn(error.what());
  }
}

}  // namespace megatron
