#include "megatron/comm/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/comm/transport.h"
#include "megatron/core/error.h"

namespace megatron::comm {

Group::Group() : transport_(make_self_transport({.name = "self", .rank = 0, .world_ranks = {0}})) {}
Group::Group(std::shared_ptr<Transport> transport) : transport_(std::move(transport)) {}

int Group::rank() const { return transport_->rank(); }
int Group::size() const { return transport_->size(); }
const std::string& Group::name() const { return transport_->membership().name; }
std::span<const int> Group::world_ranks() const { return transport_->membership().world_ranks; }

Group Group::subgroup(const std::string& name, std::span<const int> ranks) const {
  Membership membership{.name = name, .rank = -1, .world_ranks = {}};
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      throw InternalError(
          fmt::format("group {} of {} ranks has no rank {}, which its subgroup {} "
                      "was to contain",
                      this->name(), size(), rank, name));
    }
    if (rank == this->rank()) membership.rank = static_cast<int>(membership.world_ranks.size());
    const int world_rank = world_ranks()[static_cast<size_t>(rank)];
    if (std::count(ranks.begin(), ranks.end(), rank) > 1) {
      throw InternalError(
          fmt::format("subgroup {} names rank {} of group {} twice", name, rank, this->name()));
    }
    membership.world_ranks.push_back(world_rank);
  }
  if (membership.rank < 0) {
    throw InternalError(
        fmt::format("rank {} of group {} makes subgroup {} of ranks [{}], to which "
                    "it does not belong",
                    rank(), this->name(), name, fmt::join(ranks, ", ")));
  }
  if (ranks.size() == 1) return Group(make_self_transport(std::move(membership)));
  return Group(transport_->subgroup(std::move(membership)));
}

}  // namespace megatron::comm
