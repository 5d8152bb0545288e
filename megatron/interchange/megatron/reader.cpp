#include "megatron/interchange/megatron/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/interchange/megatron/common_state.h"
#include "megatron/interchange/megatron/completion.h"
#include "megatron/interchange/megatron/dist_reader.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/python_args.h"
#include "megatron/interchange/megatron/shard_parts.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWordEmbeddings = "embedding.word_embeddings.weight";
constexpr std::string_view kOutputKey = "output_layer.weight";
constexpr std::string_view kEncoderKey = "encoder";
constexpr std::string_view kDecoderKey = "decoder";

// The models in a rank's file: "model", or "model0" and so on with virtual stages.
std::vector<PyValue> models_in(const RankFiles& rank) {
  const PyValue root = rank.root();
  std::vector<PyValue> models;
  if (const PyValue* model = root.find("model")) return {*model};
  while (const PyValue* model = root.find(fmt::format("model{}", models.size()))) {
    models.push_back(*model);
  }
  return models;
}

std::vector<std::string> paths_in(const RankFiles& rank) {
  std::vector<std::string> paths;
  for (const PyValue& model : models_in(rank)) {
    for (const auto& [path, value] : flattened(model)) paths.push_back(path);
  }
  return paths;
}

ModelKind kind_in(const std::vector<RankFiles>& ranks) {
  std::vector<std::string> all;
  for (const RankFiles& rank : ranks) {
    const std::vector<std::string> paths = paths_in(rank);
    all.insert(all.end(), paths.begin(), paths.end());
  }
  return kind_of_paths(all);
}

// Adds a Retro's settings that its tensors show. Compat: the encoder of Megatron Core's Retro adds
// cross-attention to the norm, that of the older models to the residual stream.
void add_retro_settings(const std::vector<std::string>& paths, ArgMap& args) {
  std::vector<int64_t> numbers;
  for (const int64_t layer : layers_that_attend(paths)) numbers.push_back(layer + 1);
  if (numbers.empty()) return;
  const bool is_core = std::ranges::any_of(
      paths, [](const std::string& path) { return path.starts_with("decoder."); });
  args["retro_add_retriever"] = true;
  args["retro_layer_numbers"] = numbers;
  args["retro_encoder_residual"] = std::string(is_core ? "post" : "pre");
}

// The router's settings of experts under the older names. Compat: core_r0.5.0 ignores its flags
// there, and gives a token one expert, of Sinkhorn's choice in training.
void add_switch_settings(const std::vector<std::string>& paths, ArgMap& args) {
  const bool is_switch = std::ranges::any_of(paths, [](const std::string& path) {
    return path.find(".mlp.local_experts.") != std::string::npos;
  });
  if (!is_switch) return;
  const auto balancing = args.find("moe_router_load_balancing_type");
  const bool is_known = balancing != args.end() &&
                        text_of(balancing->second).find("sinkhorn") != std::string::npos &&
                        value_or<int64_t>(args, "moe_router_topk", 0) == 1;
  if (is_known) return;
  args["moe_router_topk"] = int64_t{1};
  args["moe_router_load_balancing_type"] = std::string("sinkhorn");
  args["moe_aux_loss_coeff"] = 0.0;
  args["moe_z_loss_coeff"] = ArgValue();
  args["moe_input_jitter_eps"] = ArgValue();
  args["megatron_compat"] = std::string("0.5");
}

// The number of an expert in its file, which is removed from the path: the rest is the name that
// all experts share in the format torch_dist.
std::optional<int64_t> take_expert(std::string& path) {
  constexpr std::string_view kLocal = ".local_experts.";
  const size_t at = path.find(kLocal);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + kLocal.size();
  int64_t expert = 0;
  const auto [end, error] = std::from_chars(path.data() + begin, path.data() + path.size(), expert);
  if (error != std::errc() || expert < 0) return std::nullopt;
  path.replace(at, static_cast<size_t>(end - path.data()) - at, ".experts");
  return expert;
}

// Puts the tied copy of the embedding where the older models register it: before the heads, which
// their files have before it.
void order_as_registered(std::vector<RankParameter>& chunk) {
  const auto is_copy = [](const RankParameter& parameter) {
    return parameter.path == megatron_tied_name(MegatronNaming::kLegacy);
  };
  const auto copy = std::ranges::find_if(chunk, is_copy);
  const auto first_head = std::ranges::find_if(chunk, [](const RankParameter& parameter) {
    return !parameter.path.starts_with("language_model.");
  });
  if (copy != chunk.end()) std::rotate(first_head, copy, copy + 1);
}

class MegatronReader {
 public:
  MegatronReader(const fs::path& directory, std::vector<RankFiles> ranks, ModelKind kind,
                 const ArgMap& args, Parts parts)
      : directory_(directory), ranks_(std::move(ranks)), kind_(kind) {
    contents_.directory = directory;
    // Compat: Megatron-LM loads only the weights of a release.
    contents_.is_release = is_release(directory);
    tensor_ranks_ = ranks_.back().tensor + 1;
    pipeline_ranks_ = ranks_.back().pipeline + 1;
    expert_ranks_ = ranks_.back().expert + 1;
    read_settings(args);
    read_models();
    add_tensor_sizes(kind_, contents_);
    read_common_state(ranks_.front().root(), contents_);
    if (!contents_.is_release && parts == Parts::kAll) read_optimizers();
  }
  CheckpointContents take() { return std::move(contents_); }

 private:
  [[noreturn]] void fail(const RankFiles& rank, const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", rank.file->path().string(), what));
  }

  void read_settings(const ArgMap& args);
  void add_released_sizes();
  void read_models();
  // The number of a layer of the checkpoint for layer 0 of each stack in a file.
  using FirstLayers = std::map<std::string_view, int64_t>;
  void read_chunk(RankFiles& rank, PyValue model, FirstLayers first_layers);
  void add_shard(const RankFiles& rank, const std::string& section, const RankParameter& parameter,
                 DType dtype, const ElementReader& reader);
  std::vector<ShardPart> parts_of(const RankParameter& parameter, const Shape& whole,
                                  int64_t rank) const;
  void read_optimizers();

  fs::path directory_;
  std::vector<RankFiles> ranks_;
  ModelKind kind_;
  CheckpointContents contents_;
  int64_t tensor_ranks_ = 1;
  int64_t pipeline_ranks_ = 1;
  int64_t expert_ranks_ = 1;
  int64_t num_experts_ = 0;
  int64_t version_ = 0;
  std::optional<ParameterTable> table_;
  bool is_untied_ = false;
};

void MegatronReader::read_settings(const ArgMap& given) {
  const RankFiles& first = ranks_.front();
  const PyValue root = first.root();
  const PyValue* args = root.find("args");
  contents_.args = given;
  const ArgMap& settings = contents_.args;
  num_experts_ = value_or<int64_t>(settings, "num_experts", 0);
  const auto shares = value_or<int64_t>(settings, "expert_tensor_parallel_size", tensor_ranks_);
  if (num_experts_ > 0 && shares != tensor_ranks_) {
    throw Unsupported(fmt::format(
        "{}: is of experts that {} ranks share, beside {} tensor-parallel ranks, which is not "
        "read; save it with --ckpt-format torch_dist",
        directory_.string(), shares, tensor_ranks_));
  }
  if (num_experts_ % expert_ranks_ != 0) {
    throw FormatError(fmt::format("{}: {} experts do not divide among the files of {} ranks",
                                  directory_.string(), num_experts_, expert_ranks_));
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
  if (args == nullptr) add_released_sizes();
  const PyValue* version = root.find("checkpoint_version");
  version_ = version != nullptr ? static_cast<int64_t>(version->number().value_or(0.0)) : 0;
  table_ = parameter_table(kind_, is_gated(settings));
  is_untied_ = value_or(settings, "untie_embeddings_and_output_weights", false);
}

// Compat: the GPT-2 and BERT of 345M parameters that were released with Megatron-LM store no
// settings. transformers' scripts know the numbers that tensors do not show, too.
void MegatronReader::add_released_sizes() {
  constexpr int64_t kChannels = 1024;
  constexpr int64_t kHeads = 16;
  constexpr int64_t kPaddedIds = 50304;
  constexpr int64_t kIds = 50257;
  if (contents_.args.contains("num_attention_heads")) return;
  for (const PyValue& model : models_in(ranks_.front())) {
    for (const auto& [path, value] : flattened(model)) {
      const PyTensor* tensor = value.tensor();
      const std::optional<MegatronName> name = find_megatron_name(kind_, path);
      if (tensor == nullptr || tensor->shape.rank() != 2 || !name || name->ours != kWordEmbeddings)
        continue;
      if (tensor->shape[1] == kChannels) contents_.args["num_attention_heads"] = kHeads;
      if (tensor->shape[0] == kPaddedIds) contents_.args["orig_vocab_size"] = kIds;
    }
  }
}

void MegatronReader::read_models() {
  const size_t chunks = models_in(ranks_.front()).size();  // of a rank
  // Layers are numbered within a chunk; chunks follow each other over the pipeline.
  FirstLayers first_layers;
  for (size_t chunk = 0; chunk < std::max<size_t>(chunks, 1); ++chunk) {
    for (int64_t pipeline = 0; pipeline < pipeline_ranks_; ++pipeline) {
      FirstLayers after = first_layers;
      for (RankFiles& rank : ranks_) {
        if (rank.pipeline != pipeline) continue;
        const std::vector<PyValue> models = models_in(rank);
        if (chunk >= models.size() || !models[chunk].is_dict()) fail(rank, "has no model");
        read_chunk(rank, models[chunk], first_layers);
        for (const RankParameter& parameter : rank.chunks.back()) {
          std::optional<int64_t> layer;
          without_layer(parameter.ours, layer);
          if (!layer || is_of_mtp(parameter.ours)) continue;
          int64_t& end = after[stack_of(parameter.ours) == kEncoderKey ? kEncoderKey : kDecoderKey];
          end = std::max(end, *layer + 1);
        }
      }
      first_layers = after;
    }
  }
}

void MegatronReader::read_chunk(RankFiles& rank, PyValue model, FirstLayers first_layers) {
  std::vector<RankParameter>& chunk = rank.chunks.emplace_back();
  std::vector<std::string> unknown;
  std::vector<std::string> paths;
  for (const auto& [path, value] : flattened(model)) paths.push_back(path);
  const std::set<int64_t> attending =
      is_decoder_only(kind_) ? layers_that_attend(paths) : std::set<int64_t>();
  for (const auto& [path, value] : flattened(model)) {
    const PyTensor* tensor = value.tensor();
    // States of Transformer Engine and None in its place.
    if (tensor == nullptr || path.ends_with("_extra_state")) continue;
    std::optional<int64_t> layer;
    without_layer(path, layer);
    std::string shared_path = path;
    const std::optional<int64_t> expert = take_expert(shared_path);
    std::optional<MegatronName> name =
        find_megatron_name(kind_, shared_path, layer && attending.contains(*layer));
    const int64_t local_experts = num_experts_ / expert_ranks_;
    if (!name || (expert && *expert >= local_experts)) {
      unknown.push_back(path);
      continue;
    }
    if (name->is_second_name) continue;
    if (name->ours == kOutputKey && !is_untied_) name->is_tied_copy = true;
    ParameterInfo info =
        table_->at(name->ours == kOutputKey && name->is_tied_copy ? kWordEmbeddings : name->ours);
    // The first stage of a T5's decoder has a copy of the embeddings.
    if (name->ours.starts_with("embedding.") && rank.pipeline > 0) name->is_tied_copy = true;
    const std::string_view stack = stack_of(name->ours) == kEncoderKey ? kEncoderKey : kDecoderKey;
    const int64_t first_layer = is_of_mtp(name->ours) ? 0 : first_layers[stack];
    info.sharding = info.sharding.on_rank(rank.tensor, tensor_ranks_);
    Shape shape = tensor->shape;
    if (expert) {
      info.sharding = info.sharding.on_rank(rank.tensor, tensor_ranks_, MeshAxis::kExpertTensor);
      info.sharding = info.sharding.on_rank(rank.expert * local_experts + *expert, num_experts_,
                                            MeshAxis::kExpert);
      std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
      dims.insert(dims.begin(), 1);
      shape = Shape(dims);
    }
    info.is_copy = name->is_tied_copy || (rank.expert > 0 && !expert);
    chunk.push_back({name->layer ? with_layer(name->ours, *name->layer + first_layer) : name->ours,
                     path, shape, info, tensor});
    if (info.is_copy) continue;
    const auto reader = [file = rank.file, tensor] { return file->elements(*tensor); };
    add_shard(rank, kWeightsSection, chunk.back(), tensor->dtype, reader);
  }
  if (!unknown.empty()) {
    throw Unsupported(fmt::format("{}: a {} of this program has no {}", rank.file->path().string(),
                                  name_of(kind_), listed(unknown)));
  }
  order_as_registered(chunk);
}

std::vector<ShardPart> MegatronReader::parts_of(const RankParameter& parameter, const Shape& whole,
                                                int64_t rank) const {
  if (version_ < 2 && is_encoder_decoder(kind_)) {
    throw Unsupported(
        fmt::format("{}: is a T5 of checkpoint_version {}; those from 2 on can be read",
                    directory_.string(), version_));
  }
  if (version_ < 2 && parameter.ours.find("linear_qkv") != std::string::npos) {
    const auto heads = value_or<int64_t>(contents_.args, "num_attention_heads", 0);
    if (heads == 0) {
      throw ConfigError(fmt::format(
          "{}: stores no settings, and its tensors do not show the number of heads; give "
          "--num-attention-heads",
          directory_.string()));
    }
    const int64_t channels = heads > 0 ? whole[0] / (3 * heads) : 0;
    return old_qkv_parts(version_, whole, rank, tensor_ranks_, heads, channels);
  }
  return shard_parts(parameter.info.sharding, whole);
}

void MegatronReader::add_shard(const RankFiles& rank, const std::string& section,
                               const RankParameter& parameter, DType dtype,
                               const ElementReader& reader) {
  const std::string& ours = parameter.ours;
  const Shape& shard = parameter.shape;
  const Sharding& sharding = parameter.info.sharding;
  const bool differs = std::ranges::any_of(sharding.axes, [](const AxisSharding& one) {
    return one.along == MeshAxis::kTensor || one.along == MeshAxis::kExpertTensor;
  });
  if (!differs && rank.tensor > 0) return;  // the same as on rank 0
  if (shard.rank() <= sharding.last_axis()) {
    fail(rank, fmt::format("{} has shape {}", ours, shard.str()));
  }
  StoredTensor& stored = contents_.sections[section][ours];
  const Shape whole = sharding.whole(shard);
  if (stored.pieces.empty()) {
    stored.shape = whole;
    stored.dtype = dtype;
  } else if (!(stored.shape == whole) || stored.dtype != dtype) {
    fail(rank, fmt::format("{} is {} {} in all, but {} {} by the files of other ranks", ours,
                           name_of(dtype), whole.str(), name_of(stored.dtype), stored.shape.str()));
  }
  const bool is_second = std::ranges::any_of(stored.pieces, [&](const TensorPiece& piece) {
    return intersects(piece.region, parts_of(parameter, whole, rank.tensor)[0].region);
  });
  if (is_second) fail(rank, fmt::format("{} is in the checkpoint twice", ours));
  const Shape rows = parameter.is_expert() ? Shape(shard.dims().subspan(1)) : shard;
  for (TensorPiece& piece :
       pieces_of_shard(parts_of(parameter, whole, rank.tensor), rows, dtype, reader)) {
    stored.pieces.push_back(std::move(piece));
  }
}

void MegatronReader::read_optimizers() {
  for (const RankFiles& rank : ranks_) {
    const auto sink = [&](const std::string& section, const RankParameter& parameter, DType dtype,
                          const ElementReader& reader) {
      add_shard(rank, section, parameter, dtype, reader);
    };
    read_megatron_optimizer(rank, contents_.args, sink, contents_.scalars);
  }
  add_main_params(contents_);
}

}  // namespace

MegatronCheckpoint::MegatronCheckpoint(fs::path directory, Parts parts)
    : directory_(std::move(directory)), parts_(parts) {
  if (is_dist_checkpoint(directory_)) {
    dist_ = std::make_shared<const DistCheckpoint>(directory_);
    kind_ = dist_->kind();
  } else {
    ranks_ = open_rank_files(directory_, parts_);
    kind_ = kind_in(ranks_);
  }
  const PyValue root = dist_ != nullptr ? dist_->root() : ranks_.front().root();
  const PyValue* args = root.find("args");
  if (args == nullptr) return;
  args_ = megatron_args(*args);
  if (is_decoder_only(kind_) && dist_ == nullptr) {
    const std::vector<std::string> paths = paths_in(ranks_.front());
    add_retro_settings(paths, args_);
    add_switch_settings(paths, args_);
  }
  const auto vocabulary = value_or<int64_t>(args_, "orig_vocab_size", 0);
  const bool is_conversion = is_release(directory_) || iteration_in(root) == 0;
  if (is_conversion && vocabulary > 0 && !args_.contains("true_vocab_size")) {
    // Of a model without padding rows. Compat: Accelerate stores the name too, in runs that train
    // the rows.
    args_["true_vocab_size"] = vocabulary;
  }
}

CheckpointContents MegatronCheckpoint::contents(const ArgMap& fallback) const {
  const ArgMap& args = args_.empty() ? fallback : args_;
  try {
    if (dist_ != nullptr) return dist_contents(dist_, args);
    return MegatronReader(directory_, ranks_, kind_, args, parts_).take();
  } catch (const ShapeError& error) {
    throw FormatError(fmt::format("{}: {}", directory_.string(), error.what()));
  }
}

}  // namespace megatron
