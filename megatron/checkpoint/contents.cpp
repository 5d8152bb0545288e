#include "megatron/checkpoint/contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "megatron/checkpoint/fp8_state.h"
#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/core/parallel_for.h"
#include "megatron/formats/safetensors.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

std::string shape_problem(const CheckpointTensor& target, const StoredTensor& record) {
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

// Can `target` be left as it is, because a run makes it again?
bool may_stay(const CheckpointTensor& target, const StoredSection& section) {
  const auto found = section.find(target.name);
  return is_fp8_state(target.name) &&
         (found == section.end() || !(found->second.shape == target.whole));
}

// The reasons why the targets cannot be filled from a section.
std::vector<std::string> problems_of(const StoredSection& section,
                                     std::span<const CheckpointTensor> targets, bool is_part) {
  std::vector<std::string> problems;
  std::set<std::string_view> wanted;
  for (const CheckpointTensor& target : targets) {
    wanted.insert(target.name);
    invariant(is_inside({target.offset, target.data.shape()}, target.whole),
              "a target is inside its tensor");
    if (may_stay(target, section)) continue;
    const auto found = section.find(target.name);
    if (found == section.end()) {
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
  for (const auto& [name, tensor] : section) {
    if (!is_part && !wanted.contains(name) && !is_fp8_state(name)) {
      problems.push_back(
          fmt::format("unexpected: the model has no {} {}", name, tensor.shape.str()));
    }
  }
  return problems;
}

void throw_if_any(const std::filesystem::path& directory,
                  const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw FormatError(
      fmt::format("{}: {} tensors do not fit the model; give the flags of the run "
                  "that saved it, or --use-checkpoint-args\n  {}",
                  directory.string(), problems.size(), listed(problems, "\n  ")));
}

const StoredSection& section_of(const CheckpointContents& contents, std::string_view section) {
  const auto found = contents.sections.find(std::string(section));
  if (found != contents.sections.end()) return found->second;
  std::string why = "it was saved without the optimizer's state";
  if (section == kMainParamSection && contents.has_optimizer()) {
    why = "it was saved by a run in fp32, whose weights are the main parameters";
  } else if (contents.has_optimizer()) {
    std::vector<std::string> kinds;
    for (const auto& [kind, tensors] : contents.sections) {
      if (kind != kWeightsSection && kind != kMainParamSection) kinds.push_back(kind);
    }
    why = fmt::format("it was saved by another optimizer, whose state is {}", listed(kinds));
  }
  throw FormatError(
      fmt::format("{}: has no {}: {}; give the saving run's precision and optimizer, or "
                  "--no-load-optim, which starts with the weights and a new optimizer",
                  contents.directory.string(), section, why));
}

void fill(const StoredTensor& tensor, const Region& region, const Tensor& target) {
  // Read in place if the bytes can be used directly; else through host memory, a tensor at a time.
  const bool is_in_place = target.stream().is_cpu() && target.dtype() == tensor.dtype;
  Tensor y = is_in_place ? target : Tensor(target.shape(), tensor.dtype, Stream{});
  read_region_into(y, tensor, region);
  if (!is_in_place) {
    Tensor destination = target;
    copy_into(destination, y.to(target.stream()));
  }
}

// Fills the targets, on the CPU with all threads: each takes the largest target that is left. If
// several fail, throws the error of the first one in order.
void fill_all(const StoredSection& stored, std::vector<const CheckpointTensor*> targets) {
  const auto fill_one = [&](const CheckpointTensor& target) {
    fill(stored.at(target.name), {target.offset, target.data.shape()}, target.data);
  };
  const bool is_on_cpu = std::ranges::all_of(
      targets, [](const CheckpointTensor* target) { return target->data.stream().is_cpu(); });
  if (!is_on_cpu) {
    for (const CheckpointTensor* target : targets) fill_one(*target);
    return;
  }
  std::vector<size_t> largest_first(targets.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::ranges::stable_sort(largest_first, std::greater<>(),
                           [&](size_t i) { return targets[i]->data.bytes(); });
  std::vector<std::exception_ptr> errors(targets.size());
  std::atomic<size_t> next = 0;
  parallel_for(num_threads(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < targets.size(); i = next++) {
      const size_t target = largest_first[i];
      try {
        fill_one(*targets[target]);
      } catch (...) {
        errors[target] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

StoredSection section_of(std::span<const CheckpointTensor> tensors) {
  StoredSection section;
  for (const CheckpointTensor& tensor : tensors) {
    StoredTensor& stored = section[tensor.name];
    stored.shape = tensor.whole;
    stored.dtype = tensor.data.dtype();
    stored.pieces.push_back({{tensor.offset, tensor.data.shape()}, [data = tensor.data] {
                               const Tensor host =
                                   data.to(Stream{});  // the tensor itself on the CPU
                               return FileElements{host.view(), host};
                             }});
  }
  return section;
}

// Rows [begin, begin + count) of a tensor.
Region rows_of(const StoredTensor& tensor, int64_t begin, int64_t count) {
  Region region = whole_region(tensor.shape);
  region.offset[0] = begin;
  region.shape = region.shape.with(0, count);
  return region;
}

// Changes a tensor's number of rows; new ones are zero.
void crop_rows(StoredTensor& tensor, int64_t rows) {
  tensor.shape = tensor.shape.with(0, rows);
  std::vector<TensorPiece> kept;
  for (TensorPiece& piece : tensor.pieces) {
    const int64_t count = std::min(piece.region.shape[0], rows - piece.region.offset[0]);
    if (count <= 0) continue;
    if (count < piece.region.shape[0]) {
      piece.region.shape = piece.region.shape.with(0, count);
      piece.read = [read = std::move(piece.read), count] {
        FileElements elements = read();
        elements.view.shape = elements.view.shape.with(0, count);
        return elements;
      };
    }
    kept.push_back(std::move(piece));
  }
  tensor.pieces = std::move(kept);
}

// Fills the rows that `tensor` has beyond `before` with copies of the last row of `before`.
void add_last_rows(StoredTensor& tensor, const StoredTensor& before) {
  const int64_t begin = before.shape[0];
  const int64_t count = tensor.shape[0] - begin;
  if (count <= 0) return;
  const Region added = rows_of(tensor, begin, count);
  tensor.pieces.push_back({added, [before, added, begin] {
                             const Tensor row = read_region(before, rows_of(before, begin - 1, 1));
                             Tensor rows(added.shape, before.dtype, Stream{});
                             for (int64_t i = 0; i < added.shape[0]; ++i) {
                               Tensor to = rows.slice(i, 1);
                               copy_into(to, row);
                             }
                             return FileElements{rows.view(), rows};
                           }});
}

// The number of vocabulary rows in the targets; 0 if they have no such tensor.
int64_t vocabulary_rows(std::span<const CheckpointTensor> targets) {
  for (const CheckpointTensor& target : targets) {
    if (has_vocabulary_rows(target.name) && target.whole.rank() > 0) return target.whole[0];
  }
  return 0;
}

// The number of vocabulary rows in the file; 0 if it has no such tensor.
int64_t vocabulary_rows(const CheckpointContents& contents) {
  for (const auto& [name, tensor] : section_of(contents, kWeightsSection)) {
    if (has_vocabulary_rows(name) && tensor.shape.rank() > 0) return tensor.shape[0];
  }
  return 0;
}

// The contents with the targets' number of padding rows, if that may differ. If it does not, the
// rows stay: a resumed run has the bits of one that was not stopped.
CheckpointContents with_rows_of(const CheckpointContents& contents,
                                std::span<const CheckpointTensor> targets) {
  CheckpointContents result = contents;
  const int64_t real = true_vocab_size(contents.args);
  const int64_t rows = vocabulary_rows(targets);
  const bool differs = rows != vocabulary_rows(contents);
  if (real > 0 && rows >= real && differs) pad_vocabulary(result, rows);
  return result;
}

}  // namespace

bool has_vocabulary_rows(std::string_view name) {
  return name.ends_with("word_embeddings.weight") || name.ends_with("output_layer.weight") ||
         name.ends_with("output_layer.bias");
}

const StoredTensor& vocabulary_of(const CheckpointContents& contents) {
  constexpr const char* kWords = "embedding.word_embeddings.weight";
  const StoredSection& weights = section_of(contents, kWeightsSection);
  const auto found = weights.find(kWords);
  if (found != weights.end() && found->second.shape.rank() == 2) return found->second;
  throw FormatError(
      fmt::format("{}: has no table {}; is it a GPT?", contents.directory.string(), kWords));
}

void read_section(const CheckpointContents& contents, std::string_view section,
                  std::span<const CheckpointTensor> targets, bool is_part) {
  const StoredSection& stored = section_of(contents, section);
  throw_if_any(contents.directory, problems_of(stored, targets, is_part));
  std::vector<const CheckpointTensor*> filled;
  for (const CheckpointTensor& target : targets) {
    if (!may_stay(target, stored)) filled.push_back(&target);
  }
  fill_all(stored, std::move(filled));
}

void load_checkpoint(const CheckpointContents& stored, CheckpointState& state,
                     const LoadOptions& options) {
  const CheckpointContents contents = with_rows_of(stored, state.model);
  std::vector<std::string> problems =
      problems_of(section_of(contents, kWeightsSection), state.model, options.is_part);
  if (options.optimizer) {
    for (const auto& [section, tensors] : state.optimizer) {
      const auto found = contents.sections.find(section);
      if (found == contents.sections.end()) continue;  // read_section() reports the remedy
      for (const std::string& problem : problems_of(found->second, tensors, options.is_part)) {
        problems.push_back(fmt::format("{} ({})", problem, section));
      }
    }
  }
  throw_if_any(contents.directory, problems);

  read_section(contents, kWeightsSection, state.model, options.is_part);
  if (options.optimizer) {
    for (const auto& [section, tensors] : state.optimizer) {
      read_section(contents, section, tensors, options.is_part);
    }
  }
  state.iteration = contents.iteration;
  state.consumed_train_samples = contents.consumed_train_samples;
  state.consumed_valid_samples = contents.consumed_valid_samples;
  state.scalars = contents.scalars;
  state.args = contents.args;
}

CheckpointContents contents_of(const CheckpointState& state) {
  CheckpointContents contents;
  contents.iteration = state.iteration;
  contents.consumed_train_samples = state.consumed_train_samples;
  contents.consumed_valid_samples = state.consumed_valid_samples;
  contents.scalars = state.scalars;
  contents.args = state.args;
  contents.sections[kWeightsSection] = section_of(state.model);
  for (const auto& [section, tensors] : state.optimizer) {
    contents.sections[section] = section_of(tensors);
  }
  return contents;
}

void join_pieces(CheckpointContents& contents) {
  for (auto& [section, tensors] : contents.sections) {
    for (auto& [name, tensor] : tensors) {
      Region whole = whole_region(tensor.shape);
      if (tensor.pieces.size() == 1 && tensor.pieces[0].region.shape == whole.shape) continue;
      tensor.pieces = {{std::move(whole), [parts = tensor] {
                          const Tensor joined = read_whole(parts);
                          return FileElements{joined.view(), joined};
                        }}};
    }
  }
}

void convert_section(CheckpointContents& contents, std::string_view section, DType dtype) {
  const auto found = contents.sections.find(std::string(section));
  if (found == contents.sections.end()) return;
  for (auto& [name, tensor] : found->second) {
    if (is_floating(tensor.dtype)) convert(tensor, dtype);
  }
}

void resize_vocabulary(CheckpointContents& contents, int64_t rows) {
  for (auto& [section, tensors] : contents.sections) {
    const bool repeats = section == kWeightsSection || section == kMainParamSection;
    for (auto& [name, tensor] : tensors) {
      if (!has_vocabulary_rows(name) || tensor.shape.rank() == 0) continue;
      const StoredTensor before = tensor;
      crop_rows(tensor, rows);
      if (repeats && before.shape[0] > 0) add_last_rows(tensor, before);
    }
  }
}

int64_t true_vocab_size(const ArgMap& args) {
  const auto found = args.find("true_vocab_size");
  const int64_t* value = found != args.end() ? std::get_if<int64_t>(&found->second) : nullptr;
  return value != nullptr && *value > 0 ? *value : 0;
}

void pad_vocabulary(CheckpointContents& contents, int64_t rows) {
  const int64_t real = true_vocab_size(contents.args);
  if (real > 0 && real < rows) resize_vocabulary(contents, real);
  resize_vocabulary(contents, rows);
}

}  // namespace megatron
