#include "megatron/parallel/mesh.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

Mesh::Mesh() = default;

Mesh::Mesh(const ParallelConfig& c) {
  using Sizes = std::array<std::pair<MeshAxis, int64_t>, 5>;
  const auto lay_out = [&](Sizes order) {
    if (c.use_tp_pp_dp_mapping) std::rotate(order.begin() + 2, order.end() - 1, order.end());
    int stride = 1;
    for (const auto& [axis, size] : order) {
      axes_[static_cast<size_t>(axis)] = {.size = static_cast<int>(size), .stride = stride};
      stride *= static_cast<int>(size);
    }
    invariant(stride == c.world_size, "a mesh has as many places as there are ranks");
  };
  const int64_t pp = c.pipeline_model_parallel_size;
  const int64_t etp = expert_tensor_size(c);
  const int64_t ep = c.expert_model_parallel_size;
  const int64_t instances = c.num_distributed_optimizer_instances;
  lay_out({{{MeshAxis::kTensor, c.tensor_model_parallel_size},
            {MeshAxis::kContext, c.context_parallel_size},
            {MeshAxis::kData, c.data_parallel_size / instances},
            {MeshAxis::kInstance, instances},
            {MeshAxis::kPipeline, pp}}});
  lay_out({{{MeshAxis::kExpertTensor, etp},
            {MeshAxis::kExpert, ep},
            {MeshAxis::kExpertData, c.world_size / (pp * etp * ep * instances)},
            {MeshAxis::kInstance, instances},
            {MeshAxis::kPipeline, pp}}});
}

int Mesh::size(MeshAxes axes) const {
  int size = 1;
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    if (axes.contains(static_cast<MeshAxis>(axis))) size *= at(static_cast<MeshAxis>(axis)).size;
  }
  return size;
}

std::vector<int> Mesh::group_of(int rank, MeshAxes axes) const {
  invariant(!(axes.intersects(kDenseAxes) && axes.intersects(kExpertAxes)),
            "a group is along axes of dense layers, or of experts");
  std::vector<int> members = {rank};
  for (int number = 0; number < kNumMeshAxes; ++number) {
    const auto axis = static_cast<MeshAxis>(number);
    if (!axes.contains(axis)) continue;
    const auto [size, stride] = at(axis);
    const int back = coordinate(rank, axis) * stride;
    std::vector<int> next;
    for (const int member : members) {
      for (int i = 0; i < size; ++i) next.push_back(member - back + i * stride);
    }
    members = std::move(next);
  }
  std::ranges::sort(members);
  return members;
}

}  // namespace megatron
