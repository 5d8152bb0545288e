#pragma once

#include <vector>

#include "megatron/parallel/config.h"

namespace megatron {

// Where a rank stands in the grid of all ranks.
struct RankPlace {
  int tensor = 0;
  int context = 0;
  int data = 0;
  int pipeline = 0;

  bool operator==(const RankPlace&) const = default;
};

// The ranks of a run as a grid (Narayanan et al. 2021, arXiv:2104.04473, sec. 3). Tensor-parallel
// ranks are neighbours, then context, data and pipeline; with use_tp_pp_dp_mapping pipeline comes
// before data. Arithmetic only.
class RankGrid {
 public:
  // REQUIRES: `config` is resolved and without problems.
  explicit RankGrid(const ParallelConfig& config);

  int size() const;
  RankPlace place_of(int rank) const;
  int rank_of(const RankPlace& place) const;

  // The ranks that differ from `rank` along the named axes alone, rising; those of `rank` included.
  struct Axes {
    bool tensor = false;
    bool context = false;
    bool data = false;
    bool pipeline = false;
  };
  std::vector<int> group_of(int rank, Axes axes) const;

 private:
  int tensor_;
  int context_;
  int data_;
  int pipeline_;
  bool is_pipeline_before_data_;
};

}  // namespace megatron
