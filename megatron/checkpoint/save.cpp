#include "megatron/checkpoint/save.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "megatron/checkpoint/commit.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/formats/crc32c.h"
#include "megatron/formats/safetensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

Region region_of(const CheckpointTensor& tensor) { return {tensor.offset, tensor.data.shape()}; }

// The name of a chunk in its file: that of the tensor, with the offset unless it is all of it.
std::string key_of(const CheckpointTensor& tensor) {
  if (tensor.data.shape() == tensor.whole) return tensor.name;
  return fmt::format("{}#{}", tensor.name, fmt::join(tensor.offset, ","));
}

// Writes one section's tensors as one file and enters them into the manifest.
void write_section(const fs::path& directory, const std::string& section,
                   std::span<const CheckpointTensor> tensors, Manifest& manifest) {
  const std::string file = fmt::format("{}-00000-of-00001.safetensors", section);
  std::map<std::string, const CheckpointTensor*> by_key;
  std::vector<TensorSpec> specs;
  for (const CheckpointTensor& tensor : tensors) {
    specs.push_back({key_of(tensor), tensor.data.dtype(), tensor.data.shape()});
    by_key.emplace(specs.back().name, &tensor);
  }
  auto& records = manifest.sections[section];
  SafetensorsWriter writer(directory / file, std::move(specs));
  for (const TensorSpec& spec : writer.specs()) {
    const CheckpointTensor& tensor = *by_key.at(spec.name);
    const Region region = region_of(tensor);
    invariant(is_inside(region, tensor.whole), "a chunk is a part of its tensor");
    const Tensor host = tensor.data.to(Stream{});  // the tensor itself on the CPU
    const ConstView view = host.view();
    TensorRecord& record = records[tensor.name];
    invariant(record.chunks.empty() || (record.shape == tensor.whole && record.dtype == spec.dtype),
              "the chunks of a tensor agree on its shape and dtype");
    record.shape = tensor.whole;
    record.dtype = spec.dtype;
    record.chunks.push_back({file, spec.name, region, crc32c(bytes_of(view))});
    writer.write(view);
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

void write_files(const fs::path& directory, const CheckpointState& state) {
  Manifest manifest;
  manifest.iteration = state.iteration;
  manifest.consumed_train_samples = state.consumed_train_samples;
  manifest.consumed_valid_samples = state.consumed_valid_samples;
  manifest.scalars = state.scalars;
  write_section(directory, kWeightsSection, state.model, manifest);
  for (const auto& [section, tensors] : state.optimizer) {
    write_section(directory, section, tensors, manifest);
  }
  write_args(directory, state.args, manifest);
  write_manifest(directory, manifest);
}

std::string remaining_text(const fs::path& directory) {
  const std::vector<int64_t> iterations = iterations_in(directory);
  if (iterations.empty()) return "there is no earlier checkpoint";
  return fmt::format("the checkpoint of iteration {} is unharmed", iterations.back());
}

}  // namespace

CheckpointTensor whole_tensor(std::string name, Tensor data) {
  const Shape shape = data.shape();
  return {std::move(name), std::move(data), shape,
          std::vector<int64_t>(static_cast<size_t>(shape.rank()), 0)};
}

void save_checkpoint(const fs::path& directory, const CheckpointState& state,
                     const SaveOptions& options) {
  try {
    commit_checkpoint(directory, iteration_directory_name(state.iteration),
                      CheckpointFormat::kNative, std::to_string(state.iteration),
                      [&](const fs::path& unfinished) { write_files(unfinished, state); });
  } catch (const IoError& error) {
    throw IoError(fmt::format("iteration {} was not saved: {}; {}", state.iteration, error.what(),
                              remaining_text(directory)));
  }
  try {
    remove_old_checkpoints(directory, options.keep_last, options.retain_interval);
  } catch (const Error& error) {
    warn(error.what());
  }
}

}  // namespace megatron
