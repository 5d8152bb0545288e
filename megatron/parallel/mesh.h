#pragma once

#include <array>
#include <vector>

#include "megatron/nn/mesh_axis.h"
#include "megatron/parallel/config.h"

namespace megatron {

// The ranks of a run as a grid with named axes (Narayanan et al. 2021, arXiv:2104.04473, sec. 3).
// Neighbours differ in the axis that comes first:
//
//   dense layers   tensor, context, data, instance, pipeline
//   experts        expert tensor, expert, expert data, instance, pipeline
//
// With use_tp_pp_dp_mapping pipeline comes before data and expert data. Both rows have the same
// ranks in an instance and in a pipeline stage. Arithmetic only.
class Mesh {
 public:
  // One rank.
  Mesh();
  // REQUIRES: `config` is resolved and without problems.
  explicit Mesh(const ParallelConfig& config);

  // The number of ranks along an axis, or of a group along several.
  int size(MeshAxis axis) const { return at(axis).size; }
  int size(MeshAxes axes) const;
  int coordinate(int rank, MeshAxis axis) const { return rank / at(axis).stride % at(axis).size; }
  // The ranks that differ from `rank` along these axes alone, rising; `rank` is one of them.
  // REQUIRES: the axes are of one row above.
  std::vector<int> group_of(int rank, MeshAxes axes) const;
  // True if experts use another division of the ranks than dense layers.
  bool has_expert_axes() const {
    return size(MeshAxis::kExpertTensor) != size(MeshAxis::kTensor) || size(MeshAxis::kExpert) > 1;
  }

 private:
  struct Axis {
    int size = 1;
    int stride = 1;  // between ranks that are neighbours along the axis
  };
  const Axis& at(MeshAxis axis) const { return axes_[static_cast<size_t>(axis)]; }

  std::array<Axis, kNumMeshAxes> axes_;
};

}  // namespace megatron
