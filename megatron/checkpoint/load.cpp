#include "megatron/checkpoint/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/crc32c.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw FormatError(
      fmt::format("{}: {}; the checkpoint is damaged, load an earlier one "
                  "(--ckpt-step) or copy this one again",
                  file.string(), what));
}

// The tensors whose first axis is the padded vocabulary.
bool has_vocabulary_rows(std::string_view name) {
  return name.ends_with("word_embeddings.weight") || name.ends_with("output_layer.weight") ||
         name.ends_with("output_layer.bias");
}

std::string shape_problem(const CheckpointTensor& target, const TensorRecord& record) {
  const std::string both = fmt::format("{} is {} in the checkpoint, {} in the model", target.name,
                                       record.shape.str(), target.whole.str());
  const bool differs_in_rows = record.shape.rank() == target.whole.rank() &&
                               record.shape.rank() > 0 &&
                               record.shape.with(0, 0) == target.whole.with(0, 0);
  if (differs_in_rows && has_vocabulary_rows(target.name)) {
    return fmt::format(
        "vocabulary: {}; use the checkpoint's tokenizer, and its "
        "--make-vocab-size-divisible-by or --padded-vocab-size {}",
        both, record.shape[0]);
  }
  return fmt::format("shape: {}", both);
}

using Records = std::map<std::string, TensorRecord>;

// What keeps the targets from being filled with a section.
std::vector<std::string> problems_of(const Records& records,
                                     std::span<const CheckpointTensor> targets) {
  std::vector<std::string> problems;
  std::set<std::string_view> wanted;
  for (const CheckpointTensor& target : targets) {
    wanted.insert(target.name);
    invariant(is_inside({target.offset, target.data.shape()}, target.whole),
              "a target is a part of its tensor");
    const auto found = records.find(target.name);
    if (found == records.end()) {
      problems.push_back(
          fmt::format("missing: the checkpoint has no {} {}", target.name, target.whole.str()));
    } else if (!(found->second.shape == target.whole)) {
      problems.push_back(shape_problem(target, found->second));
    } else if (found->second.dtype != target.data.dtype() &&
               !(is_floating(found->second.dtype) && is_floating(target.data.dtype()))) {
      problems.push_back(fmt::format("dtype: {} is {} in the checkpoint, {} in the model",
                                     target.name, name_of(found->second.dtype),
                                     name_of(target.data.dtype())));
    }
  }
  for (const auto& [name, record] : records) {
    if (!wanted.contains(name)) {
      problems.push_back(
          fmt::format("unexpected: the model has no {} {}", name, record.shape.str()));
    }
  }
  return problems;
}

void throw_if_any(const fs::path& directory, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw FormatError(
      fmt::format("{}: {} tensors do not fit the model; give the flags of the run "
                  "that saved it, or --use-checkpoint-args\n  {}",
                  directory.string(), problems.size(), fmt::join(problems, "\n  ")));
}

}  // namespace

CheckpointReader::CheckpointReader(fs::path directory)
    : directory_(std::move(directory)), manifest_(read_manifest(directory_)) {
  const fs::path path = directory_ / kArgsFile;
  const std::string text = read_text(path);
  const auto record = manifest_.files.find(kArgsFile);
  if (record == manifest_.files.end() ||
      record->second.crc != crc32c(std::as_bytes(std::span(text)))) {
    damaged(path, "the bytes are not those that were saved");
  }
  args_ = parse_args(text, path);
}

const std::map<std::string, TensorRecord>& CheckpointReader::records_of(
    std::string_view section) const {
  const auto found = manifest_.sections.find(std::string(section));
  if (found != manifest_.sections.end()) return found->second;
  throw FormatError(
      fmt::format("{}: has no {}; it was saved without the optimizer's state or by "
                  "another optimizer, load it with --no-load-optim",
                  directory_.string(), section));
}

const SafetensorsFile& CheckpointReader::opened(const std::string& name) {
  const auto known = files_.find(name);
  if (known != files_.end()) return known->second;
  const fs::path path = directory_ / name;
  const FileRecord& record = manifest_.files.at(name);
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) throw IoError(fmt::format("{}: cannot read: {}", path.string(), error.message()));
  if (bytes != record.bytes) {
    damaged(path, fmt::format("has {} bytes, {} were saved", bytes, record.bytes));
  }
  SafetensorsFile file(path);
  if (file.header_crc() != record.crc) damaged(path, "the header is not the one that was saved");
  return files_.emplace(name, std::move(file)).first->second;
}

ConstView CheckpointReader::checked_chunk(const std::string& tensor, const TensorRecord& record,
                                          const ChunkRecord& chunk) {
  const SafetensorsFile& file = opened(chunk.file);
  const FileTensor* found = file.find(chunk.key);
  if (found == nullptr || found->spec.dtype != record.dtype ||
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

void CheckpointReader::fill(const std::string& name, const TensorRecord& record,
                            const Region& region, const Tensor& target) {
  // Read in place where bytes can be; else through host memory, one tensor at a time.
  const bool is_in_place = target.stream().is_cpu() && target.dtype() == record.dtype;
  Tensor y = is_in_place ? target : Tensor(target.shape(), record.dtype, Stream{});
  for (const ChunkRecord& chunk : record.chunks) {
    if (!intersects(chunk.region, region)) continue;
    const ConstView source = checked_chunk(name, record, chunk);
    copy_shared(static_cast<std::byte*>(y.view().data), region,
                static_cast<const std::byte*>(source.data), chunk.region, size_of(record.dtype));
  }
  if (!is_in_place) {
    Tensor destination = target;
    copy_into(destination, y.to(target.stream()));
  }
}

void CheckpointReader::read(std::string_view section, std::span<const CheckpointTensor> targets) {
  const Records& records = records_of(section);
  throw_if_any(directory_, problems_of(records, targets));
  for (const CheckpointTensor& target : targets) {
    fill(target.name, records.at(target.name), {target.offset, target.data.shape()}, target.data);
  }
}

void load_checkpoint(const fs::path& iteration_directory, CheckpointState& state,
                     const LoadOptions& options) {
  CheckpointReader reader(iteration_directory);
  const Manifest& manifest = reader.manifest();
  std::vector<std::string> problems =
      problems_of(manifest.sections.at(kWeightsSection), state.model);
  if (options.optimizer) {
    for (const auto& [section, tensors] : state.optimizer) {
      const auto found = manifest.sections.find(section);
      if (found == manifest.sections.end()) continue;  // read() says what to do
      for (const std::string& problem : problems_of(found->second, tensors)) {
        problems.push_back(fmt::format("{} ({})", problem, section));
      }
    }
  }
  throw_if_any(iteration_directory, problems);

  reader.read(kWeightsSection, state.model);
  if (options.optimizer) {
    for (const auto& [section, tensors] : state.optimizer) reader.read(section, tensors);
  }
  state.iteration = manifest.iteration;
  state.consumed_train_samples = manifest.consumed_train_samples;
  state.consumed_valid_samples = manifest.consumed_valid_samples;
  state.scalars = manifest.scalars;
  state.args = reader.args();
}

std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& current) {
  constexpr const char* kNames[] = {"num_layers",
                                    "hidden_size",
                                    "num_attention_heads",
                                    "add_position_embedding",
                                    "max_position_embeddings",
                                    "make_vocab_size_divisible_by",
                                    "padded_vocab_size",
                                    "tokenizer_type"};
  std::vector<std::string> found;
  for (const char* name : kNames) {
    const auto before = saved.find(name);
    const auto now = current.find(name);
    if (before == saved.end() || now == current.end() || before->second == now->second) continue;
    found.push_back(
        fmt::format("{} is {} in the checkpoint, but {} now; give the checkpoint's "
                    "value or --finetune",
                    name, text_of(before->second), text_of(now->second)));
  }
  return found;
}

}  // namespace megatron
