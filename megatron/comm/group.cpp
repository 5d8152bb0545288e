#include "megatron/comm/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/comm/nccl/nccl_transport.h"
#include "megatron/comm/peer/peer_transport.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/cuda.h"

namespace megatron::comm {

struct Group::State {
  std::shared_ptr<Transport> transport;
  Device device;
  std::unique_ptr<DeviceTransport> device_transport;  // uses `transport` until its destruction
};

Group::Group() : Group(make_self_transport({.name = "self", .rank = 0, .world_ranks = {0}})) {}
Group::Group(std::shared_ptr<Transport> transport)
    : state_(std::make_shared<State>(State{std::move(transport), {}, nullptr})) {}

int Group::rank() const { return transport().rank(); }
int Group::size() const { return transport().size(); }
const std::string& Group::name() const { return transport().membership().name; }
std::span<const int> Group::world_ranks() const { return transport().membership().world_ranks; }

Transport& Group::transport() const { return *state_->transport; }

DeviceTransport& Group::device_transport(Device device) const {
  if (state_->device_transport == nullptr) {
    if constexpr (cuda::kIsBuilt) {
      std::unique_ptr<DeviceTransport> made = peer::make_peer_transport(transport(), device);
      if (made == nullptr) made = nccl::make_nccl_transport(transport(), device);
      if (rank() == 0) debug(fmt::format("group {}: {} GPUs by {}", name(), size(), made->name()));
      state_->device_transport = std::move(made);
      state_->device = device;
    } else {
      throw Unsupported("group " + name() + ": this binary was built without CUDA");
    }
  }
  invariant(state_->device == device, "a rank communicates from one GPU");
  return *state_->device_transport;
}

Group Group::subgroup(const std::string& name, std::span<const int> ranks) const {
  Membership membership{.name = name, .rank = -1, .world_ranks = {}};
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      throw InternalError(fmt::format("group {} of {} ranks has no rank {} for its subgroup {}",
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
  return Group(transport().subgroup(std::move(membership)));
}

}  // namespace megatron::comm
