#include "megatron/parallel/parallel_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {

namespace {

// REQUIRES: stages.size() > 1
PipelineLinks make_links(const comm::Group& world, const std::vector<int>& stages, size_t stage) {
  const size_t count = stages.size();
  PipelineLinks links;
  // Link i joins stages i and i + 1; everybody makes its two in rising order, so that no ring of
  // ranks waits for each other.
  const auto make_both = [&](size_t i) {
    const std::vector<int> pair = {stages[i], stages[(i + 1) % count]};
    const bool is_before = i == stage;
    (is_before ? links.to_next : links.from_previous) =
        world.subgroup(fmt::format("pipeline forward {}", i), pair);
    (is_before ? links.from_next : links.to_previous) =
        world.subgroup(fmt::format("pipeline backward {}", i), pair);
  };
  const size_t before = (stage + count - 1) % count;
  make_both(std::min(before, stage));
  make_both(std::max(before, stage));
  return links;
}

// The levels of a rank's context-parallel `members`, neighbours of which exchange heads.
ContextLevels make_levels(const comm::Group& world, const std::vector<int>& members, int rank,
                          int num_neighbours) {
  std::vector<int> heads;
  std::vector<int> ring;
  for (int i = 0; i < static_cast<int>(members.size()); ++i) {
    const int member = members[static_cast<size_t>(i)];
    if (i / num_neighbours == rank / num_neighbours) heads.push_back(member);
    if (i % num_neighbours == rank % num_neighbours) ring.push_back(member);
  }
  ContextLevels levels;
  levels.ring.group = world.subgroup("context ring", ring);
  if (num_neighbours == 1) return levels;
  levels.heads.exchange = ContextExchange::kAllToAll;
  levels.heads.group = world.subgroup("context heads", heads);
  std::ranges::reverse(heads);
  levels.heads.mirrored = world.subgroup("context heads mirrored", heads);
  return levels;
}

}  // namespace

ContextParallel ContextParallel::heads() const {
  if (exchange != ContextExchange::kAllToAll) return {};
  return levels != nullptr ? levels->heads : *this;
}

ContextParallel ContextParallel::ring() const {
  if (exchange != ContextExchange::kAllToAll) return *this;
  return levels != nullptr ? levels->ring : ContextParallel{};
}

comm::Group ParallelContext::group(MeshAxes axes) const {
  if (mesh.size(axes) == 1) return {};
  const auto found = std::ranges::find(groups, axes, &std::pair<MeshAxes, comm::Group>::first);
  invariant(found != groups.end(), "a run has the groups that its layers use");
  return found->second;
}

bool ParallelContext::is_first_along(MeshAxes axes) const {
  return mesh.group_of(world.rank(), axes).front() == world.rank();
}

ParallelContext make_parallel_context(const comm::Group& world, const ParallelConfig& config) {
  ParallelContext context;
  context.mesh = Mesh(config);
  context.world = world;
  const int rank = world.rank();
  const auto group = [&](const char* name, MeshAxes axes) -> comm::Group {
    const std::vector<int> members = context.mesh.group_of(rank, axes);
    if (members.size() == 1) return {};
    return context.groups.emplace_back(axes, world.subgroup(name, members)).second;
  };
  context.tensor = {
      .group = group("tensor", MeshAxis::kTensor),
      .sequence_parallel = config.sequence_parallel,
      // Compat: sequence parallelism switches the flag off, but overlaps all the same.
      .overlaps_gradients =
          config.async_tensor_model_parallel_allreduce || config.sequence_parallel,
      .overlaps_products = config.tp_comm_overlap};
  context.context.group = group("context", MeshAxis::kContext);
  context.context.exchange = config.context_exchange;
  if (context.context.size() > 1) {
    std::vector<int> members = context.mesh.group_of(rank, MeshAxis::kContext);
    const auto neighbours = static_cast<int>(head_exchange_size(config));
    if (config.context_exchange == ContextExchange::kAllToAll &&
        neighbours < context.context.size()) {
      context.context.levels = std::make_shared<const ContextLevels>(
          make_levels(world, members, context.context.rank(), neighbours));
    }
    std::reverse(members.begin(), members.end());
    context.context.mirrored = world.subgroup("context mirrored", members);
  }
  context.pipeline = group("pipeline", MeshAxis::kPipeline);
  context.data = group("data", kDenseDataAxes);
  context.model = group("model", {MeshAxis::kTensor, MeshAxis::kPipeline});
  // The same ranks along other axes share a communicator.
  std::vector<comm::Group> sharable = {context.tensor.group, context.data};
  const auto shared_group = [&](const char* name, MeshAxes axes) {
    const std::vector<int> members = context.mesh.group_of(rank, axes);
    if (members.size() == 1) return;
    for (const comm::Group& same : sharable) {
      if (!std::ranges::equal(same.world_ranks(), members)) continue;
      context.groups.emplace_back(axes, same);
      return;
    }
    sharable.push_back(group(name, axes));
  };
  shared_group("data of an instance", kDenseDataAxes.without(MeshAxis::kInstance));
  shared_group("instances", MeshAxis::kInstance);
  shared_group("expert tensor", MeshAxis::kExpertTensor);
  shared_group("expert", MeshAxis::kExpert);
  shared_group("expert data", kExpertDataAxes);
  shared_group("expert data of an instance", MeshAxis::kExpertData);
  if (world.size() > 1) {
    context.tensor.experts = std::make_shared<const ExpertParallel>(
        ExpertParallel{.shares = context.group(MeshAxis::kExpertTensor),
                       .experts = context.group(MeshAxis::kExpert),
                       .data = context.data});
  }
  if (context.pipeline.size() > 1) {
    const std::vector<int> stages = context.mesh.group_of(rank, MeshAxis::kPipeline);
    context.links = make_links(world, stages, static_cast<size_t>(context.pipeline.rank()));
  }
  return context;
}

}  // namespace megatron
