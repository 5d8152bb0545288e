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
                     int64_t tensor, int64_t pipeline)
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
  }
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

std::array<std::vector<const RankParameter*>, 2> RankShard::groups() const {
  std::array<std::vector<const RankParameter*>, 2> groups;
  for (const Chunk& chunk : chunks_) {
    for (const RankParameter& parameter : chunk) {
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
  if (parts.size() == 1) return elements_of(stored, parts[0].region);
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
