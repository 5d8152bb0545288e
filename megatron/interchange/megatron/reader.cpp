#include "megatron/interchange/megatron/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/python_args.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

class MegatronReader {
 public:
  MegatronReader(const fs::path& directory, const ArgMap& fallback)
      : directory_(directory), ranks_(open_rank_files(directory)) {
    contents_.directory = directory;
    tensor_ranks_ = ranks_.back().tensor + 1;
    pipeline_ranks_ = ranks_.back().pipeline + 1;
    read_settings(fallback);
    read_models();
    read_optimizers();
  }
  CheckpointContents take() { return std::move(contents_); }

 private:
  [[noreturn]] void fail(const RankFiles& rank, const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", rank.file->path().string(), what));
  }

  void read_settings(const ArgMap& fallback);
  void read_scheduler();
  void read_models();
  void read_chunk(RankFiles& rank, PyValue model, int64_t first_layer);
  void add_shard(const RankFiles& rank, const std::string& section, const std::string& ours,
                 const Shape& shard, DType dtype, const ShardReader& reader);
  std::vector<ShardPart> parts_of(const std::string& ours, const Shape& whole, int64_t rank) const;
  void read_optimizers();

  fs::path directory_;
  std::vector<RankFiles> ranks_;
  CheckpointContents contents_;
  int64_t tensor_ranks_ = 1;
  int64_t pipeline_ranks_ = 1;
  int64_t version_ = 0;
  bool is_gated_ = false;
  bool is_untied_ = false;
};

void MegatronReader::read_settings(const ArgMap& fallback) {
  const RankFiles& first = ranks_.front();
  const PyValue root = first.root();
  const PyValue* args = root.find("args");
  contents_.args = args != nullptr ? megatron_args(*args) : fallback;
  const ArgMap& settings = contents_.args;
  if (value_or<int64_t>(settings, "expert_model_parallel_size", 1) > 1 ||
      value_or<int64_t>(settings, "num_experts", 0) > 1) {
    throw Unsupported(
        fmt::format("{}: is of a model with experts, which are not read", directory_.string()));
  }
  if (args != nullptr) {
    const auto tensor_ranks =
        value_or<int64_t>(settings, "tensor_model_parallel_size", tensor_ranks_);
    const auto pipeline_ranks =
        value_or<int64_t>(settings, "pipeline_model_parallel_size", pipeline_ranks_);
    if (tensor_ranks != tensor_ranks_ || pipeline_ranks != pipeline_ranks_) {
      throw FormatError(fmt::format(
          "{}: was saved by {} x {} ranks (tensor x pipeline), but has the files of {} x {}; copy "
          "the whole directory",
          directory_.string(), tensor_ranks, pipeline_ranks, tensor_ranks_, pipeline_ranks_));
    }
  }
  const PyValue* version = root.find("checkpoint_version");
  version_ = version != nullptr ? static_cast<int64_t>(version->number().value_or(0.0)) : 0;
  is_gated_ = is_gated(settings);
  is_untied_ = value_or(settings, "untie_embeddings_and_output_weights", false);

  const PyValue* iteration = root.find("iteration");
  if (iteration == nullptr) iteration = root.find("total_iters");
  contents_.iteration = iteration != nullptr ? iteration->integer().value_or(0) : 0;
  contents_.consumed_train_samples = value_or<int64_t>(settings, "consumed_train_samples", 0);
  contents_.consumed_valid_samples = value_or<int64_t>(settings, "consumed_valid_samples", 0);
  const PyValue* flops = root.find("num_floating_point_operations_so_far");
  contents_.scalars["progress"] = {
      {"floating_point_operations", flops != nullptr ? flops->number().value_or(0.0) : 0.0}};
  if (root.find("rng_state") != nullptr || root.find("cuda_rng_state") != nullptr) {
    // States of other generators mean nothing here; the seed that they grew from does.
    contents_.scalars["rng"] = {{"seed", value_or<int64_t>(settings, "seed", 1234)}};
  }
  read_scheduler();
}

void MegatronReader::read_scheduler() {
  const PyValue root = ranks_.front().root();
  const PyValue* scheduler = root.find("opt_param_scheduler");
  if (scheduler == nullptr) scheduler = root.find("lr_scheduler");
  if (scheduler == nullptr) return;
  ArgMap map = plain_args(*scheduler);
  constexpr std::pair<const char*, const char*> kOldNames[] = {{"start_lr", "max_lr"},
                                                               {"warmup_iter", "lr_warmup_steps"},
                                                               {"warmup_steps", "lr_warmup_steps"},
                                                               {"end_iter", "lr_decay_steps"},
                                                               {"decay_steps", "lr_decay_steps"},
                                                               {"decay_style", "lr_decay_style"},
                                                               {"num_iters", "num_steps"}};
  for (const auto& [old, now] : kOldNames) {
    const auto found = map.find(old);
    if (found != map.end() && !map.contains(now)) map[now] = found->second;
  }
  contents_.scalars["opt_param_scheduler"] = std::move(map);
}

void MegatronReader::read_models() {
  const PyValue first = ranks_.front().root();
  const bool has_chunks = first.find("model0") != nullptr;
  int64_t chunks = has_chunks ? 0 : 1;  // of a rank
  while (has_chunks && first.find(fmt::format("model{}", chunks)) != nullptr) ++chunks;
  // Layers are numbered within a chunk; chunks follow each other over the pipeline.
  int64_t first_layer = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t pipeline = 0; pipeline < pipeline_ranks_; ++pipeline) {
      int64_t layers = 0;
      for (int64_t tensor = 0; tensor < tensor_ranks_; ++tensor) {
        RankFiles& rank = ranks_[static_cast<size_t>(pipeline * tensor_ranks_ + tensor)];
        const PyValue root = rank.root();
        const PyValue* model = root.find(has_chunks ? fmt::format("model{}", chunk) : "model");
        if (model == nullptr || !model->is_dict()) fail(rank, "has no model");
        read_chunk(rank, *model, first_layer);
        for (const RankTensor& parameter : rank.chunks.back()) {
          std::optional<int64_t> layer;
          without_layer(parameter.ours, layer);
          if (layer) layers = std::max(layers, *layer + 1 - first_layer);
        }
      }
      first_layer += layers;
    }
  }
}

void MegatronReader::read_chunk(RankFiles& rank, PyValue model, int64_t first_layer) {
  std::vector<RankTensor>& chunk = rank.chunks.emplace_back();
  std::vector<std::string> unknown;
  for (const auto& [path, value] : flattened(model)) {
    const PyTensor* tensor = value.tensor();
    // States of Transformer Engine and None in its place.
    if (tensor == nullptr || path.ends_with("_extra_state")) continue;
    std::optional<MegatronName> name = find_megatron_name(path);
    if (!name) {
      unknown.push_back(path);
      continue;
    }
    if (name->ours == "output_layer.weight" && !is_untied_) name->is_tied_copy = true;
    chunk.push_back({path,
                     name->layer ? with_layer(name->ours, *name->layer + first_layer) : name->ours,
                     name->is_tied_copy, tensor});
    if (name->is_tied_copy) continue;
    const auto reader = [file = rank.file, tensor] { return file->elements(*tensor); };
    add_shard(rank, kWeightsSection, chunk.back().ours, tensor->shape, tensor->dtype, reader);
  }
  if (!unknown.empty()) {
    throw Unsupported(fmt::format("{}: a GPT of this program has no {}", rank.file->path().string(),
                                  fmt::join(unknown, ", ")));
  }
}

std::vector<ShardPart> MegatronReader::parts_of(const std::string& ours, const Shape& whole,
                                                int64_t rank) const {
  if (version_ < 2 && ours.find("linear_qkv") != std::string::npos) {
    const auto heads = value_or<int64_t>(contents_.args, "num_attention_heads", 0);
    const int64_t channels = heads > 0 ? whole[0] / (3 * heads) : 0;
    return old_qkv_parts(version_, whole, rank, tensor_ranks_, heads, channels);
  }
  return shard_parts(shard_kind_of(ours, is_gated_), whole, rank, tensor_ranks_);
}

void MegatronReader::add_shard(const RankFiles& rank, const std::string& section,
                               const std::string& ours, const Shape& shard, DType dtype,
                               const ShardReader& reader) {
  const ShardKind kind = shard_kind_of(ours, is_gated_);
  if (kind == ShardKind::kWhole && rank.tensor > 0) return;  // the same as on rank 0
  if (shard.rank() == 0 || (kind == ShardKind::kColumns && shard.rank() != 2)) {
    fail(rank, fmt::format("{} has shape {}", ours, shard.str()));
  }
  StoredTensor& stored = contents_.sections[section][ours];
  const Shape whole = whole_shape(kind, shard, tensor_ranks_);
  if (stored.pieces.empty()) {
    stored.shape = whole;
    stored.dtype = dtype;
  } else if (!(stored.shape == whole) || stored.dtype != dtype) {
    fail(rank, fmt::format("{} is {} {} in all, but {} {} by the files of other ranks", ours,
                           name_of(dtype), whole.str(), name_of(stored.dtype), stored.shape.str()));
  }
  const bool is_second = std::ranges::any_of(stored.pieces, [&](const TensorPiece& piece) {
    return intersects(piece.region, parts_of(ours, whole, rank.tensor)[0].region);
  });
  if (is_second) fail(rank, fmt::format("{} is in the checkpoint twice", ours));
  for (ShardPart& part : parts_of(ours, whole, rank.tensor)) {
    const int64_t row_bytes = shard[0] == 0 ? 0 : shard.numel() / shard[0] * size_of(dtype);
    stored.pieces.push_back(
        {part.region, [reader, shape = part.region.shape, skipped = part.begin * row_bytes] {
           FileElements elements = reader();
           elements.view.data = static_cast<const std::byte*>(elements.view.data) + skipped;
           elements.view.shape = shape;
           return elements;
         }});
  }
}

void MegatronReader::read_optimizers() {
  for (const RankFiles& rank : ranks_) {
    const auto sink = [&](const std::string& section, const RankTensor& parameter, DType dtype,
                          const ShardReader& reader) {
      add_shard(rank, section, parameter.ours, parameter.tensor->shape, dtype, reader);
    };
    read_megatron_optimizer(rank, contents_.args, sink, contents_.scalars);
  }
  if (!contents_.has_optimizer() || contents_.sections.contains(kMainParamSection)) return;
  // A run in fp32 keeps no copies: the weights are the main parameters.
  const StoredSection& weights = contents_.sections.at(kWeightsSection);
  const bool is_fp32 = std::ranges::all_of(
      weights, [](const auto& entry) { return entry.second.dtype == DType::kFloat32; });
  if (is_fp32) contents_.sections[kMainParamSection] = weights;
}

}  // namespace

CheckpointContents open_megatron_checkpoint(const fs::path& directory, const ArgMap& fallback) {
  try {
    return MegatronReader(directory, fallback).take();
  } catch (const ShapeError& error) {
    throw FormatError(fmt::format("{}: {}", directory.string(), error.what()));
  }
}

}  // namespace megatron
