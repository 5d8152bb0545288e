#include "megatron/parallel/rank_grid.h"

#include "megatron/core/error.h"

namespace megatron {

RankGrid::RankGrid(const ParallelConfig& config)
    : tensor_(static_cast<int>(config.tensor_model_parallel_size)),
      context_(static_cast<int>(config.context_parallel_size)),
      data_(static_cast<int>(config.data_parallel_size)),
      pipeline_(static_cast<int>(config.pipeline_model_parallel_size)),
      is_pipeline_before_data_(config.use_tp_pp_dp_mapping) {
  invariant(size() == config.world_size, "the grid of ranks has as many places as there are ranks");
}

int RankGrid::size() const { return tensor_ * context_ * data_ * pipeline_; }

RankPlace RankGrid::place_of(int rank) const {
  const int outer = rank / (tensor_ * context_);
  RankPlace place;
  place.tensor = rank % tensor_;
  place.context = rank / tensor_ % context_;
  place.data = is_pipeline_before_data_ ? outer / pipeline_ : outer % data_;
  place.pipeline = is_pipeline_before_data_ ? outer % pipeline_ : outer / data_;
  return place;
}

int RankGrid::rank_of(const RankPlace& place) const {
  const int outer = is_pipeline_before_data_ ? place.data * pipeline_ + place.pipeline
                                             : place.pipeline * data_ + place.data;
  return (outer * context_ + place.context) * tensor_ + place.tensor;
}

std::vector<int> RankGrid::group_of(int rank, Axes axes) const {
  const RankPlace here = place_of(rank);
  std::vector<int> members;
  for (int other = 0; other < size(); ++other) {
    const RankPlace there = place_of(other);
    const bool is_member = (axes.tensor || there.tensor == here.tensor) &&
                           (axes.context || there.context == here.context) &&
                           (axes.data || there.data == here.data) &&
                           (axes.pipeline || there.pipeline == here.pipeline);
    if (is_member) members.push_back(other);
  }
  return members;
}

}  // namespace megatron
