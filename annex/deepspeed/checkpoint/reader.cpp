#include "megatron/interchange/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "annex/deepspeed/checkpoint/files.h"
#include "annex/deepspeed/checkpoint/hf_module.h"
#include "annex/deepspeed/checkpoint/model_states.h"
#include "annex/deepspeed/checkpoint/names.h"
#include "annex/deepspeed/checkpoint/shards.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "annex/deepspeed/checkpoint/universal.h"
#include "megatron/core/error.h"
#include "megatron/core/listed.h"
#include "megatron/interchange/megatron/completion.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/python_args.h"
#include "megatron/interchange/model_kind.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// The contents of a directory without its tensors.
CheckpointContents settings_in(const fs::path& directory, PyValue root, const ArgMap& fallback) {
  CheckpointContents contents;
  contents.directory = directory;
  const PyValue* args = root.find("args");
  contents.args = args != nullptr ? megatron_args(*args) : fallback;
  const auto count = [&](std::initializer_list<std::string_view> keys, int64_t otherwise) {
    const PyValue* value = root.find_path(keys);
    return value != nullptr ? value->integer().value_or(otherwise) : otherwise;
  };
  const int64_t rows = count({"checkpoint_info", "padded_vocab_size"}, 0);
  if (rows > 0 && !contents.args.contains("padded_vocab_size")) {
    contents.args["padded_vocab_size"] = rows;
  }
  contents.iteration = count({"iteration"}, count({"global_steps"}, 0));
  const auto setting = [&](const char* name, int64_t otherwise) {
    return args != nullptr ? value_or<int64_t>(contents.args, name, otherwise) : otherwise;
  };
  const int64_t samples = count({"global_samples"}, 0);
  contents.consumed_train_samples = setting("consumed_train_samples", samples);
  contents.consumed_valid_samples = setting("consumed_valid_samples", 0);
  contents.scalars["progress"] = {{"floating_point_operations", 0.0}};
  const PyValue* scheduler = root.find("lr_scheduler");
  const auto has = [&](const char* key) { return scheduler->find(key) != nullptr; };
  if (scheduler != nullptr && scheduler->is_dict() && !has("last_batch_iteration") &&
      !has("last_epoch")) {
    contents.scalars["opt_param_scheduler"] = scheduler_args(*scheduler, contents.args);
  } else {  // DeepSpeed's own schedule, PyTorch's, or none: updates that were skipped do
            // not advance
    const int64_t skipped =
        count({"skipped_steps"}, 0) * count({"ds_config", "train_batch_size"}, 0);
    contents.scalars["opt_param_scheduler"] = {
        {"num_steps", std::max<int64_t>(contents.consumed_train_samples - skipped, 0)}};
  }
  return contents;
}

class DeepSpeedReader {
 public:
  DeepSpeedReader(std::vector<DeepSpeedRank> ranks, CheckpointContents contents, Parts parts);
  CheckpointContents take() { return std::move(contents_); }

 private:
  [[noreturn]] void fail(const std::string& file, const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", file, what));
  }
  std::string file_of(int64_t model_rank) const {
    const DeepSpeedRank& rank = ranks_[static_cast<size_t>(model_rank)];
    return (rank.optimizer.empty() ? rank.model : rank.optimizer[0])->path().string();
  }
  void expect_all_layers() const;
  std::vector<std::string> parameters() const;
  void read_layers();
  void read_modules();
  // For a transformers model.
  void read_hf();
  // The part of a weight that a rank has.
  DeepSpeedShard weight_of(size_t rank, const std::string& name, const PyTensor& tensor) const;
  void read_state();
  // Adds a shard. A later pipeline stage may have a copy of the embedding.
  void add(DeepSpeedShards& shards, int64_t model_rank, const std::string& ours,
           DeepSpeedShard shard) const;
  void join(const std::string& section, const DeepSpeedShards& shards);

  CheckpointContents contents_;
  std::vector<DeepSpeedRank> ranks_;  // by model-parallel rank
  DeepSpeedLayers layers_;
  std::vector<DeepSpeedState> states_;  // by model-parallel rank
  int64_t tensor_ranks_ = 1;
  DeepSpeedShards weights_;
  std::optional<DeepSpeedNames> names_;
};

DeepSpeedReader::DeepSpeedReader(std::vector<DeepSpeedRank> ranks, CheckpointContents contents,
                                 Parts parts)
    : contents_(std::move(contents)),
      ranks_(std::move(ranks)),
      layers_(open_deepspeed_layers(contents_.directory)) {
  tensor_ranks_ =
      static_cast<int64_t>(layers_.empty() ? ranks_.size() : layers_.begin()->second.size());
  for (const DeepSpeedRank& rank : ranks_) {
    if (!rank.optimizer.empty()) {
      states_.push_back(read_zero_state(rank));
    } else {
      states_.push_back(parts == Parts::kAll ? read_plain_state(rank) : DeepSpeedState());
    }
  }
  const std::vector<std::string> names = parameters();
  if (layers_.empty() && !names.empty() && are_hf_names(names)) {
    read_hf();
    return;
  }
  names_.emplace(names);
  if (layers_.empty()) {
    read_modules();
  } else {
    expect_all_layers();
    read_layers();
  }
  join(kWeightsSection, weights_);
  if (parts == Parts::kAll) read_state();
}

void DeepSpeedReader::expect_all_layers() const {
  const int last = layers_.rbegin()->first;
  if (!layers_.contains(kPipelineEmbedding) || last < kPipelineFirstLayer + kPipelineAfterLayers ||
      static_cast<int>(layers_.size()) != last - kPipelineFirstLayer - kPipelineAfterLayers + 3) {
    fail(contents_.directory.string(),
         fmt::format("has the files of layers up to {}, but not all of them", last));
  }
  const auto ranks = static_cast<int64_t>(ranks_.size());
  if (!ranks_[0].optimizer.empty() && ranks % tensor_ranks_ != 0) {
    fail(contents_.directory.string(),
         fmt::format("layers have the files of {} tensor-parallel ranks, but the optimizer those "
                     "of {} model-parallel ones; are all files of one save?",
                     tensor_ranks_, ranks));
  }
}

std::vector<std::string> DeepSpeedReader::parameters() const {
  std::vector<std::string> names;
  for (const auto& [layer, files] : layers_) {
    for (const auto& [path, value] : flattened(files[0]->root())) {
      names.push_back(fmt::format("{}.{}", layer, path));
    }
  }
  if (!names.empty()) return names;
  for (const auto& [name, tensor] : module_parameters(*ranks_[0].model)) names.push_back(name);
  return names;
}

void DeepSpeedReader::add(DeepSpeedShards& shards, int64_t model_rank, const std::string& ours,
                          DeepSpeedShard shard) const {
  std::vector<DeepSpeedShard>& of_ranks = shards[ours];
  of_ranks.resize(static_cast<size_t>(tensor_ranks_));
  DeepSpeedShard& place = of_ranks[static_cast<size_t>(model_rank % tensor_ranks_)];
  if (place.read == nullptr) {
    place = std::move(shard);
  } else if (!ours.starts_with("embedding.")) {
    fail(shard.file, fmt::format("{} is also in {}", ours, place.file));
  }
}

void DeepSpeedReader::read_layers() {
  for (const auto& [layer, files] : layers_) {
    for (size_t rank = 0; rank < files.size(); ++rank) {
      const std::string file = files[rank]->path().string();
      for (const auto& [path, value] : flattened(files[rank]->root())) {
        const PyTensor* tensor = value.tensor();
        if (tensor == nullptr) continue;
        const auto ours = names_->ours(fmt::format("{}.{}", layer, path), file);
        if (!ours) continue;
        add(weights_, static_cast<int64_t>(rank), *ours,
            {file, tensor->shape, tensor->dtype,
             [opened = files[rank], tensor] { return opened->elements(*tensor); }});
      }
    }
  }
}

DeepSpeedShard DeepSpeedReader::weight_of(size_t rank, const std::string& name,
                                          const PyTensor& tensor) const {
  const auto& model = ranks_[rank].model;
  const std::string file = model->path().string();
  if (tensor.shape.numel() > 0) {
    return {file, tensor.shape, tensor.dtype, [model, t = &tensor] { return model->elements(*t); }};
  }
  // Stage 3: the optimizer's files have the elements.
  const DeepSpeedState& state = states_[rank];
  const auto main = state.kinds.find(kMainParamSection);
  const bool is_there = main != state.kinds.end() && main->second.contains(name);
  if (!is_there || !state.shapes.contains(name)) {
    fail(file, fmt::format("{} is divided among ranks, and no optim_states.pt has its parts; "
                           "copy the files of all ranks here",
                           name));
  }
  const ShardedState& parts = main->second.at(name);
  return {file, state.shapes.at(name), parts.dtype, parts.read};
}

void DeepSpeedReader::read_hf() {
  if (ranks_.size() > 1) {
    throw Unsupported(fmt::format(
        "{}: has the files of {} model-parallel ranks, and none of their parameters has "
        "a name of Megatron-LM",
        contents_.directory.string(), ranks_.size()));
  }
  std::vector<std::pair<std::string, DeepSpeedShard>> weights;
  for (const auto& [name, tensor] : module_parameters(*ranks_[0].model)) {
    weights.emplace_back(name, weight_of(0, name, *tensor));
  }
  read_hf_module(weights, states_[0], contents_);
  if (contents_.sections.size() > 1) add_main_params(contents_);
}

void DeepSpeedReader::read_modules() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& model = ranks_[rank].model;
    const std::string file = model->path().string();
    for (const auto& [name, tensor] : module_parameters(*model)) {
      const auto ours = names_->ours(name, file);
      if (!ours) continue;
      add(weights_, static_cast<int64_t>(rank), *ours, weight_of(rank, name, *tensor));
    }
  }
  if (weights_.empty()) {
    fail(ranks_[0].model->path().string(), "has no weights, and there are no files of layers");
  }
}

void DeepSpeedReader::join(const std::string& section, const DeepSpeedShards& shards) {
  const ParameterTable table = parameter_table(names_->kind(), is_gated(contents_.args));
  for (const auto& [ours, of_ranks] : shards) {
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (of_ranks[rank].read != nullptr) continue;
      fail(contents_.directory.string(),
           fmt::format("the files of tensor-parallel rank {} have no {} of {}, as others", rank,
                       section, ours));
    }
    contents_.sections[section][ours] = joined_shards(ours, table.at(ours).sharding, of_ranks);
  }
}

void DeepSpeedReader::read_state() {
  std::map<std::string, DeepSpeedShards> kinds;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    const auto model_rank = static_cast<int64_t>(rank);
    const std::string file = file_of(model_rank);
    for (const auto& [kind, tensors] : states_[rank].kinds) {
      for (const auto& [name, tensor] : tensors) {
        const auto ours = names_->ours(name, file);
        if (!ours) continue;
        const auto weight = weights_.find(*ours);
        const Shape shape =
            weight == weights_.end()
                ? Shape()
                : weight->second[static_cast<size_t>(model_rank % tensor_ranks_)].shape;
        if (weight == weights_.end() || shape.numel() != tensor.numel) {
          fail(file,
               fmt::format("{} of {} has {} elements in the files of all ranks, the weight {}; "
                           "are all files of one save?",
                           kind, name, tensor.numel,
                           weight == weights_.end() ? "none" : shape.str()));
        }
        add(kinds[kind], model_rank, *ours, {file, shape, tensor.dtype, tensor.read});
      }
    }
    for (const auto& [owner, values] : states_[rank].scalars) contents_.scalars[owner] = values;
  }
  for (const auto& [kind, shards] : kinds) join(kind, shards);
  add_main_params(contents_);
}

}  // namespace

CheckpointContents open_deepspeed_checkpoint(const fs::path& directory, const ArgMap& fallback,
                                             Parts parts) {
  CheckpointContents contents;
  if (is_universal_checkpoint(directory)) {
    const fs::path first = first_model_states(directory);
    if (first.empty()) {
      throw FormatError(fmt::format("{}: is missing; it has the arguments of the run",
                                    (directory / "mp_rank_00_model_states.pt").string()));
    }
    const TorchFile settings(first);
    contents = settings_in(directory, settings.root(), fallback);
    read_universal(directory, settings, parts, contents);
  } else {
    std::vector<DeepSpeedRank> ranks = open_deepspeed_ranks(directory, parts);
    contents = settings_in(directory, ranks[0].model->root(), fallback);
    contents = DeepSpeedReader(std::move(ranks), std::move(contents), parts).take();
  }
  if (contents.sections.at(kWeightsSection).contains("output_layer.weight")) {
    contents.args.try_emplace("untie_embeddings_and_output_weights", true);
  }
  add_tensor_sizes(kind_of(contents), contents);
  return contents;
}

}  // namespace megatron
