#include "megatron/interchange/megatron/rank_shard.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/shard_parts.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {

RankShard::RankShard(const CheckpointContents& contents, const MegatronLayout& layout,
                     int64_t tensor, int64_t pipeline, bool divides_experts)
    : contents_(contents),
      layout_(layout),
      weights_(contents.sections.at(kWeightsSection)),
      tensor_(tensor),
      pipeline_(pipeline),
      kind_(kind_of(contents)),
      table_(parameter_table(kind_, is_gated(contents.args))),
      stages_(contents, layout) {
  std::vector<std::string> names;
  for (const auto& entry : weights_) names.push_back(entry.first);
  if (is_decoder_only(kind_)) attending_layers_ = layers_that_attend(names);
  weights_dtype_ = layout.params_dtype.value_or(weights_.at(kWordEmbeddings).dtype);
  for (int64_t chunk = 0; chunk < layout.virtual_pipeline_model_parallel_size; ++chunk) {
    chunks_.push_back(chunk_of(chunk));
    if (divides_experts) divide_experts(chunks_.back());
  }
}

void RankShard::divide_experts(Chunk& chunk) const {
  Chunk divided;
  Chunk experts;  // of a layer, which follow each other
  const auto put_experts = [&] {
    const ExpertPlace place = {.share = tensor_, .share_ranks = layout_.tensor_model_parallel_size};
    for (RankParameter& one : experts_of(experts, place, false)) divided.push_back(std::move(one));
    experts.clear();
  };
  for (RankParameter& parameter : chunk) {
    if (!parameter.is_expert()) put_experts();
    (parameter.is_expert() ? experts : divided).push_back(std::move(parameter));
  }
  put_experts();
  chunk = std::move(divided);
}

RankShard::Chunk RankShard::experts_of(const Chunk& tensors, const ExpertPlace& place,
                                       bool is_grouped) const {
  Chunk all;
  const auto add = [&](const RankParameter& tensor, int64_t local) {
    const Shape& whole = weights_.at(tensor.ours).shape;
    RankParameter one = tensor;
    Sharding& sharding = one.info.sharding;
    sharding = sharding.on_rank(place.share, place.share_ranks, MeshAxis::kExpertTensor);
    sharding = sharding.on_rank(place.expert * whole[0] / place.expert_ranks + local, whole[0],
                                MeshAxis::kExpert);
    const Shape part = sharding.local(whole);
    one.shape = Shape(part.dims().subspan(1));           // a file has no axis of experts
    constexpr std::string_view kTogether = ".experts.";  // the last one: theirs is doubled in Core
    if (const size_t at = one.path.rfind(kTogether); at != std::string::npos) {
      one.path.replace(at, kTogether.size(), ".local_experts." + std::to_string(local) + ".");
    }
    all.push_back(std::move(one));
  };
  const auto layer_of = [&](size_t i) {
    return tensors[i].ours.substr(0, tensors[i].ours.find(".experts."));
  };
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    while (end < tensors.size() && layer_of(end) == layer_of(begin)) ++end;
    const int64_t count = weights_.at(tensors[begin].ours).shape[0] / place.expert_ranks;
    const auto size = static_cast<int64_t>(end - begin);
    for (int64_t i = 0; i < count * size; ++i) {
      const int64_t of_layer = is_grouped ? i / count : i % size;
      add(tensors[begin + static_cast<size_t>(of_layer)], is_grouped ? i % count : i / size);
    }
  }
  return all;
}

// The parameters of a chunk as Megatron-LM registers them.
RankShard::Chunk RankShard::chunk_of(int64_t chunk) const {
  const MegatronStages::Place here = {pipeline_, chunk};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights_) {
    if (stages_.holds(here, name)) names.push_back(name);
  }
  Chunk parameters;
  const auto add = [&](const std::string& ours, std::string path) {
    ParameterInfo info = table_.at(ours);
    info.sharding = info.sharding.on_rank(tensor_, layout_.tensor_model_parallel_size);
    parameters.push_back(
        {ours, std::move(path), info.sharding.local(weights_.at(ours).shape), info, nullptr});
  };
  const bool is_tied = !weights_.contains(kOutputWeights);
  if (is_tied && stages_.is_last(here) && !stages_.has_embeddings(here)) {
    names.emplace_back(kOutputWeights);  // the tied copy
  }
  const bool has_mtp = std::ranges::any_of(names, is_of_mtp);
  if (has_mtp && !stages_.has_embeddings(here)) names.emplace_back(kWordEmbeddings);  // a copy
  for (const std::string& name : registration_order(layout_.naming, std::move(names))) {
    if (is_tied && name == kOutputWeights) {
      add(kWordEmbeddings, megatron_tied_name(layout_.naming));
      continue;
    }
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(name, layer);
    const bool attends = layer && attending_layers_.contains(*layer);
    const std::string path = megatron_name(kind_, layout_.naming, pattern, attends);
    add(name, with_layer(path, layer ? stages_.local_layer(here, name, *layer) : 0));
  }
  return parameters;
}

RankShard::Chunk RankShard::trained(size_t chunk) const {
  Chunk parameters = chunks_[chunk];
  std::erase_if(parameters, [](const RankParameter& parameter) {
    return parameter.info.role == ParameterRole::kBuffer;
  });
  return parameters;
}

std::array<std::vector<const RankParameter*>, 2> RankShard::groups() const {
  std::array<std::vector<const RankParameter*>, 2> groups;
  for (const Chunk& chunk : chunks_) {
    for (const RankParameter& parameter : chunk) {
      if (parameter.info.role == ParameterRole::kBuffer) continue;
      groups[is_decayed(parameter.info.role) ? 0 : 1].push_back(&parameter);
    }
  }
  return groups;
}

bool RankShard::has_optimizer() const {
  // Muon has the moments of some parameters only.
  return layout_.with_optimizer && contents_.sections.contains("exp_avg") &&
         !contents_.sections.contains("momentum_buffer");
}

// Gradients of bf16 are always summed in fp32.
DType RankShard::grad_dtype() const {
  const bool is_fp32 = weights_dtype_ == DType::kBFloat16 ||
                       value_or(contents_.args, "accumulate_allreduce_grads_in_fp32", false);
  return is_fp32 ? DType::kFloat32 : weights_dtype_;
}

FileElements RankShard::elements(const char* section, const RankParameter& parameter) const {
  const StoredTensor& stored = contents_.sections.at(section).at(parameter.ours);
  const std::vector<ShardPart> parts = shard_parts(parameter.info.sharding, stored.shape);
  if (parts.size() == 1) {
    FileElements elements = elements_of(stored, parts[0].region);
    elements.view.shape = parameter.shape;
    return elements;
  }
  if (parameter.is_expert()) {  // its parts are pieces of one matrix, one below the other
    Tensor y(parameter.shape, stored.dtype, Stream{});
    for (const ShardPart& part : parts) {
      const Tensor piece = read_region(stored, part.region);
      Tensor rows = y.slice(part.begin, part.region.shape[1]);
      copy_into(rows, piece.reshape(rows.shape()));
    }
    return {std::as_const(y).view(), y};
  }
  Tensor y(parameter.shape, stored.dtype, Stream{});
  for (const ShardPart& part : parts) {
    Tensor rows = y.slice(part.begin, part.region.shape[0]);
    copy_into(rows, read_region(stored, part.region));
  }
  return {std::as_const(y).view(), y};
}

double RankShard::scalar(const char* owner, const char* name) const {
  const auto map = contents_.scalars.find(owner);
  if (map == contents_.scalars.end()) return 0.0;
  return value_or(map->second, name, static_cast<double>(value_or<int64_t>(map->second, name, 0)));
}

}  // namespace megatron
