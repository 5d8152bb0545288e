#include "megatron/parallel/parallel_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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

}  // namespace

ParallelContext make_parallel_context(const comm::Group& world, const ParallelConfig& config) {
  const RankGrid grid(config);
  const int rank = world.rank();
  const auto group = [&](const char* name, RankGrid::Axes axes) {
    const std::vector<int> members = grid.group_of(rank, axes);
    return members.size() == 1 ? comm::Group() : world.subgroup(name, members);
  };
  ParallelContext context;
  context.world = world;
  context.place = grid.place_of(rank);
  context.tensor = {
      .group = group("tensor", {.tensor = true}),
      .sequence_parallel = config.sequence_parallel,
      // Compat: sequence parallelism switches the flag off, but overlaps all the same.
      .overlaps_gradients =
          config.async_tensor_model_parallel_allreduce || config.sequence_parallel,
      .overlaps_products = config.tp_comm_overlap};
  context.context.group = group("context", {.context = true});
  context.context.exchange = config.context_exchange;
  if (context.context.size() > 1) {
    std::vector<int> members = grid.group_of(rank, {.context = true});
    std::reverse(members.begin(), members.end());
    context.context.mirrored = world.subgroup("context mirrored", members);
  }
  context.pipeline = group("pipeline", {.pipeline = true});
  context.data = group("data", {.context = true, .data = true});
  context.model = group("model", {.tensor = true, .pipeline = true});
  if (context.pipeline.size() > 1) {
    const std::vector<int> stages = grid.group_of(rank, {.pipeline = true});
    context.links = make_links(world, stages, static_cast<size_t>(context.pipeline.rank()));
  }
  return context;
}

}  // namespace megatron
