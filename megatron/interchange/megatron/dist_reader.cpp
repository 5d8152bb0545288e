#include "megatron/interchange/megatron/dist_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/formats/json_file.h"
#include "megatron/interchange/megatron/common_state.h"
#include "megatron/interchange/megatron/completion.h"
#include "megatron/interchange/megatron/dist_buckets.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/python_args.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDescription = "metadata.json";
constexpr const char* kCommonFile = "common.pt";
constexpr const char* kCommonObject = "common_state/shard_0_1";  // of later versions
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kState = "optimizer.state.";
constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kOutput = "output_layer.weight";

// Kinds of state; the last two are names of the main parameters.
constexpr struct {
  std::string_view theirs;
  const char* ours;
} kKinds[] = {{"exp_avg", "exp_avg"},
              {"exp_avg_sq", "exp_avg_sq"},
              {"momentum_buffer", "momentum_buffer"},
              {"fp32_param", kMainParamSection},
              {"param", kMainParamSection}};

// The meaning of one of their keys.
struct Key {
  std::string section;  // empty: state of buffers, or of an unknown kind
  std::string path;     // of the parameter, with the number of a layer or without
};

Key key_of(std::string_view name) {
  constexpr std::string_view kChain = "chained_";  // of several optimizers in a chain
  if (name.starts_with(kChain)) name.remove_prefix(std::min(name.find('.') + 1, name.size()));
  if (!name.starts_with(kOptimizer)) return {kWeightsSection, std::string(name)};
  if (!name.starts_with(kState)) return {};
  name.remove_prefix(kState.size());
  for (const auto& kind : kKinds) {
    if (name.starts_with(kind.theirs) && name.substr(kind.theirs.size()).starts_with('.')) {
      return {kind.ours, std::string(name.substr(kind.theirs.size() + 1))};
    }
  }
  return {};
}

// True if the path names the merged tensors of all layers of a stack.
bool is_merged(std::string_view path) {
  std::optional<int64_t> layer;
  without_layer(path, layer);
  const std::string_view stack = stack_of(path);
  return !layer && !stack.empty() && path.substr(stack.size() + 1).starts_with(kLayers);
}

// The path of layer 0 for that of all.
std::string first_of_merged(std::string_view path) {
  const size_t at = stack_of(path).size() + 1 + kLayers.size();
  return fmt::format("{}0.{}", path.substr(0, at), path.substr(at));
}

class DistReader {
 public:
  DistReader(const std::shared_ptr<const DistCheckpoint>& checkpoint, const ArgMap& args)
      : checkpoint_(checkpoint), kind_(checkpoint->kind()) {
    const fs::path& directory = checkpoint->files().directory();
    contents_.directory = directory;
    contents_.is_release = is_release(directory);
    contents_.args = args;
    is_untied_ = value_or(args, "untie_embeddings_and_output_weights", true);
    read_tensors();
    add_tensor_sizes(kind_, contents_);
    read_common_state(checkpoint->root(), contents_);
    if (contents_.is_release) {
      drop_optimizer();
      return;
    }
    read_random_state();
    read_optimizer();
    read_own_scalars();
  }
  CheckpointContents take() { return std::move(contents_); }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", contents_.directory.string(), what));
  }

  void read_tensors();
  // Main parameters under the name that another kind of optimizer has for them, too.
  bool is_second_name(std::string_view name) const {
    constexpr std::string_view kPrefix = "optimizer.state.fp32_param.";
    if (!name.starts_with(kPrefix)) return false;
    const std::string first = fmt::format("optimizer.state.param.{}", name.substr(kPrefix.size()));
    return checkpoint_->files().index().tensors.contains(first);
  }
  void add_tensor(const std::string& name, const Key& key, const TorchDistIndex::Tensor& tensor);
  // The halves of a gated product, which some options keep apart.
  enum class Half { kBoth, kGate, kUp };
  void add_piece(StoredSection& section, const std::string& ours, Half half, Shape whole,
                 DType dtype, TensorPiece piece);
  void expect_complete() const;
  void read_random_state();
  void read_optimizer();
  void read_own_scalars();
  void drop_optimizer() {
    std::erase_if(contents_.sections,
                  [](const auto& section) { return section.first != kWeightsSection; });
  }

  std::shared_ptr<const DistCheckpoint> checkpoint_;
  ModelKind kind_;
  CheckpointContents contents_;
  bool is_untied_ = true;
  bool has_buckets_ = false;
  std::vector<std::string> unknown_;
};

void DistReader::read_tensors() {
  contents_.sections[kWeightsSection];
  for (const auto& [name, tensor] : checkpoint_->files().index().tensors) {
    const Key key = key_of(name);
    if (is_second_name(name)) continue;
    if (is_dist_bucket(name)) {
      has_buckets_ = true;
    } else if (key.section.empty()) {
      contents_.optimizer_problem = fmt::format("{} is not state of a parameter", name);
    } else if (!key.path.ends_with("_extra_state")) {
      add_tensor(name, key, tensor);
    }
  }
  if (!unknown_.empty()) {
    throw Unsupported(fmt::format("{}: a {} of this program has no {}",
                                  contents_.directory.string(), name_of(kind_), listed(unknown_)));
  }
  expect_complete();
}

void DistReader::add_tensor(const std::string& name, const Key& key,
                            const TorchDistIndex::Tensor& tensor) {
  const bool is_of_all_layers = is_merged(key.path);
  std::string path = is_of_all_layers ? first_of_merged(key.path) : key.path;
  Half half = Half::kBoth;
  if (path.find("linear_fc1.") != std::string::npos) {
    if (path.ends_with("_w")) half = Half::kGate;
    if (path.ends_with("_v")) half = Half::kUp;
    if (half != Half::kBoth) path.resize(path.size() - 2);
  }
  const std::optional<MegatronName> found = find_megatron_name(kind_, path);
  if (!found) return unknown_.push_back(name);
  const bool is_copy = found->ours == kOutput && !is_untied_;
  if (is_copy || found->is_second_name || found->is_tied_copy) return;
  if (!tensor.dtype) {
    throw Unsupported(fmt::format("{}: {} has a type of elements that this program does not have",
                                  contents_.directory.string(), name));
  }
  StoredSection& section = contents_.sections[key.section];
  const auto reader = [&](const TorchDistIndex::Piece& piece) {
    return [checkpoint = checkpoint_, &name, &tensor, &piece] {
      return checkpoint->files().elements(name, tensor, piece);
    };
  };
  if (!is_of_all_layers) {
    const std::string ours = found->layer ? with_layer(found->ours, *found->layer) : found->ours;
    for (const TorchDistIndex::Piece& piece : tensor.pieces) {
      add_piece(section, ours, half, tensor.shape, *tensor.dtype, {piece.region, reader(piece)});
    }
    return;
  }
  if (tensor.shape.rank() < 2) fail(fmt::format("{} has shape {}", name, tensor.shape.str()));
  const Shape whole(tensor.shape.dims().subspan(1));
  for (const TorchDistIndex::Piece& piece : tensor.pieces) {
    const Region region = {{piece.region.offset.begin() + 1, piece.region.offset.end()},
                           Shape(piece.region.shape.dims().subspan(1))};
    const int64_t bytes = region.shape.numel() * size_of(*tensor.dtype);
    for (int64_t i = 0; i < piece.region.shape[0]; ++i) {
      const auto read = [all = reader(piece), skipped = i * bytes, shape = region.shape] {
        FileElements elements = all();
        elements.view.data = static_cast<const std::byte*>(elements.view.data) + skipped;
        elements.view.shape = shape;
        return elements;
      };
      add_piece(section, with_layer(found->ours, piece.region.offset[0] + i), half, whole,
                *tensor.dtype, {region, read});
    }
  }
}

void DistReader::add_piece(StoredSection& section, const std::string& ours, Half half, Shape whole,
                           DType dtype, TensorPiece piece) {
  if (half != Half::kBoth) {
    if (whole.rank() == 0) fail(fmt::format("{} has shape {}", ours, whole.str()));
    if (half == Half::kUp) piece.region.offset[0] += whole[0];
    whole = whole.with(0, 2 * whole[0]);
  }
  StoredTensor& stored = section[ours];
  if (stored.pieces.empty()) {
    stored.shape = whole;
    stored.dtype = dtype;
  } else if (!(stored.shape == whole) || stored.dtype != dtype) {
    fail(fmt::format("{} is both {} {} and {} {}", ours, name_of(stored.dtype), stored.shape.str(),
                     name_of(dtype), whole.str()));
  }
  const bool is_second = std::ranges::any_of(stored.pieces, [&](const TensorPiece& other) {
    return intersects(other.region, piece.region);
  });
  if (is_second) fail(fmt::format("{} is in the checkpoint twice", ours));
  stored.pieces.push_back(std::move(piece));
}

void DistReader::expect_complete() const {
  for (const auto& [section, tensors] : contents_.sections) {
    for (const auto& [name, tensor] : tensors) {
      int64_t numel = 0;
      for (const TensorPiece& piece : tensor.pieces) numel += piece.region.shape.numel();
      if (numel == tensor.shape.numel()) continue;
      fail(
          fmt::format("{} of shape {} has pieces of {} elements in all; the checkpoint is "
                      "damaged, copy the whole directory again",
                      name, tensor.shape.str(), numel));
    }
  }
}

void DistReader::read_random_state() {
  const auto& objects = checkpoint_->files().index().objects;
  const bool is_there = std::ranges::any_of(
      objects, [](const auto& object) { return object.first.starts_with("rng_state"); });
  if (is_there) {
    contents_.scalars["rng"] = {{"seed", value_or<int64_t>(contents_.args, "seed", 1234)}};
  }
}

void DistReader::read_optimizer() {
  constexpr const char* kRemedy =
      "save it with --ckpt-fully-parallel-save and --dist-ckpt-optim-fully-reshardable there";
  std::string& problem = contents_.optimizer_problem;
  if (has_buckets_) problem = read_dist_buckets(checkpoint_, contents_);
  for (const auto& [name, place] : checkpoint_->files().index().objects) {
    if (name.starts_with("optimizer.distributed") && !has_buckets_) {
      problem = fmt::format("{} is state of a rank's buffers", name);
    }
  }
  const StoredSection& weights = contents_.sections.at(kWeightsSection);
  for (const auto& [section, tensors] : contents_.sections) {
    for (const auto& [name, tensor] : tensors) {
      const auto weight = weights.find(name);
      if (weight != weights.end() && weight->second.shape == tensor.shape) continue;
      problem =
          fmt::format("{} of {} has shape {}, the weight {}", section, name, tensor.shape.str(),
                      weight == weights.end() ? "is not there" : weight->second.shape.str());
    }
  }
  if (!problem.empty()) {
    problem += fmt::format(": it belongs to the ranks that saved it; {}", kRemedy);
    drop_optimizer();
    return;
  }
  if (!contents_.has_optimizer()) return;
  if (const PyValue* optimizer = checkpoint_->root().find("optimizer")) {
    read_optimizer_numbers(checkpoint_->root_file(), *optimizer, contents_.scalars);
    for (const auto& [key, member] : optimizer->entries()) {  // of a chain, by number
      if (key.integer())
        read_optimizer_numbers(checkpoint_->root_file(), member, contents_.scalars);
    }
  }
  add_main_params(contents_);
}

void DistReader::read_own_scalars() {
  const PyValue* own = checkpoint_->root().find(kOwnScalars);
  if (own == nullptr) return;
  for (const auto& [owner, values] : own->entries()) {
    const auto name = owner.text();
    if (name && values.is_dict()) contents_.scalars[std::string(*name)] = plain_args(values);
  }
}

// Refuses what other writers leave in such a directory.
void expect_torch_dist(const fs::path& directory) {
  if (!fs::exists(directory / kDescription)) {
    throw Unsupported(fmt::format(
        "{}: has {} but no {}, as checkpoints of the formats torch_dcp and fsdp_dtensor, which are "
        "not read; save it with --ckpt-format torch_dist, or copy that file, too",
        directory.string(), kTorchDistMetadata, kDescription));
  }
  const nlohmann::json json = read_json(directory / kDescription);
  const auto backend = json.is_object() ? json.find("sharded_backend") : json.end();
  const bool is_text = json.is_object() && backend != json.end() && backend->is_string();
  const std::string format = is_text ? backend->get<std::string>() : "unknown";
  if (format == "torch_dist") return;
  throw Unsupported(fmt::format(
      "{}: is a checkpoint of the format {}, which is not read; load it with a Megatron-LM that "
      "does, and save it with --ckpt-format torch_dist",
      directory.string(), format.substr(0, 40)));
}

}  // namespace

bool is_dist_checkpoint(const fs::path& directory) {
  if (!fs::is_directory(directory)) return false;
  const bool has_ranks = std::ranges::any_of(
      fs::directory_iterator(directory),
      [](const fs::directory_entry& entry) { return is_rank_folder(entry.path()); });
  return !has_ranks &&
         (fs::exists(directory / kTorchDistMetadata) || fs::exists(directory / kDescription));
}

DistCheckpoint::DistCheckpoint(const fs::path& directory) {
  expect_torch_dist(directory);
  files_ = std::make_unique<TorchDistDirectory>(directory);
  std::vector<std::string> paths;
  for (const auto& [name, tensor] : files_->index().tensors) paths.push_back(key_of(name).path);
  kind_ = kind_of_paths(paths);
  const auto common = files_->index().objects.find(kCommonObject);
  if (fs::exists(directory / kCommonFile)) {
    root_file_ = std::make_unique<TorchFile>(directory / kCommonFile);
    root_ = root_file_->root();
  } else if (common != files_->index().objects.end()) {
    root_file_ = std::make_unique<TorchFile>(files_->open(common->second));
    const auto items = root_file_->root().items();
    if (!items.empty()) root_ = items[0];
  }
  if (!root_.is_dict()) {
    throw FormatError(fmt::format(
        "{}: has neither {} nor an object common_state with the settings of the run; the "
        "checkpoint is damaged, copy the whole directory again",
        directory.string(), kCommonFile));
  }
}

CheckpointContents dist_contents(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                                 const ArgMap& args) {
  return DistReader(checkpoint, args).take();
}

}  // namespace megatron
