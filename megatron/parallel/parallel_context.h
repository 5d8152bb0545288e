#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/mesh.h"

namespace megatron {

// The ranks that share the experts of a layer.
struct ExpertParallel {
  comm::Group shares = {};   // with a share of the same experts each (MeshAxis::kExpertTensor)
  comm::Group experts = {};  // with other experts each (MeshAxis::kExpert)
  comm::Group data = {};     // with other samples or parts of a sequence each (ParallelContext)
};

// The ranks that share each layer, and how.
struct TensorParallel {
  comm::Group group = {};
  // Between the sharded products each rank has a slice of the sequence
  // (Korthikanti et al. 2022, arXiv:2205.05198).
  bool sequence_parallel = false;
  // The collectives of a column-parallel layer's gradients run beside its products.
  bool overlaps_gradients = true;
  // Matrix products run in pieces that overlap with the transfers of their inputs or outputs
  // (tensor/linear.h).
  bool overlaps_products = false;
  std::shared_ptr<const ExpertParallel> experts = nullptr;  // null: this rank has all experts

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // The division of an axis of a tensor among these ranks.
  Sharding sharding(int axis, int64_t parts = 1) const {
    return {{.axis = axis, .index = rank(), .count = size(), .parts = parts}};
  }
};

struct ContextLevels;

// The ranks that share each sequence, where queries meet the keys of all. A sequence is cut into
// twice as many chunks as there are ranks; rank i has chunks i and 2 size - 1 - i, one after the
// other, so that under a causal mask all have equally much to do.
struct ContextParallel {
  comm::Group group = {};     // rank i has chunk i
  comm::Group mirrored = {};  // the same ranks in falling order: position i has chunk size + i
  ContextExchange exchange = ContextExchange::kP2p;
  std::shared_ptr<const ContextLevels> levels = nullptr;  // of kAllToAll; null: all exchange heads

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // The all-to-all group of this rank, and the ranks that divide each sequence after it.
  ContextParallel heads() const;
  ContextParallel ring() const;
  // This rank's chunks, of 2 size.
  std::array<int64_t, 2> chunks() const { return {rank(), 2 * size() - 1 - rank()}; }
};

// Neighbours have adjacent chunks, so that those of `heads` are the two chunks of a rank of the
// ring.
struct ContextLevels {
  ContextParallel heads = {};  // neighbours
  ContextParallel ring = {};   // the ranks that have the same place among their neighbours
};

// Pairs of neighbouring pipeline stages, with a separate group for each direction: a message waits
// only for its receiver. The stages form a ring, for interleaved schedules.
struct PipelineLinks {
  comm::Group from_previous = {};  // receives activations
  comm::Group to_next = {};        // sends activations
  comm::Group from_next = {};      // receives their gradients
  comm::Group to_previous = {};    // sends gradients
};

// The groups that this rank is a member of. The default is one rank alone.
struct ParallelContext {
  Mesh mesh = {};
  comm::Group world = {};
  TensorParallel tensor = {};
  ContextParallel context = {};
  comm::Group pipeline = {};
  PipelineLinks links = {};
  comm::Group data = {};   // ranks that hold the same weights: data and context parallel
  comm::Group model = {};  // ranks that share one copy of the model: tensor and pipeline
  std::vector<std::pair<MeshAxes, comm::Group>> groups = {};  // those that group() finds

  int coordinate(MeshAxis axis) const { return mesh.coordinate(world.rank(), axis); }
  // The ranks that differ from this one along `axes` alone. A run has the groups of every single
  // axis of experts, of each of the groups above, and of all axes of data, of an instance's, and of
  // kInstance, for dense layers and for experts.
  comm::Group group(MeshAxes axes) const;
  // True if this rank is the first of that group.
  bool is_first_along(MeshAxes axes) const;

  // The number of ranks with different samples, and the index of this rank among them.
  int num_replicas() const { return data.size() / context.size(); }
  int replica() const {
    return coordinate(MeshAxis::kInstance) * mesh.size(MeshAxis::kData) +
           coordinate(MeshAxis::kData);
  }
  bool is_first_stage() const { return pipeline.rank() == 0; }
  bool is_last_stage() const { return pipeline.rank() == pipeline.size() - 1; }
};

// The groups of this rank of `world`. Every rank calls it with the same resolved config.
ParallelContext make_parallel_context(const comm::Group& world, const ParallelConfig& config);

}  // namespace megatron
