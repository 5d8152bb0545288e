#pragma once

#include <memory>
#include <span>
#include <string>

#include "megatron/device/device.h"

namespace megatron::comm {

class DeviceTransport;
class Transport;

// This rank's membership in an ordered set of ranks that communicate. A cheap handle: copies are
// the same membership. Collectives (collectives.h) are called by every member, in the same order.
// One thread uses the groups of a rank at a time.
class Group {
 public:
  // This rank alone: every collective is the identity and costs nothing.
  Group();
  explicit Group(std::shared_ptr<Transport> transport);

  int rank() const;  // position of this rank in the group
  int size() const;
  // "tensor", "data", ...: for messages.
  const std::string& name() const;
  // Positions of the members in the world, in the order of the group.
  std::span<const int> world_ranks() const;

  // The group of the members at `ranks` (positions in this group, in the order of the new one; this
  // rank is among them). Only they call it; nobody waits. Members that make several groups of the
  // same name and ranks make them in the same order.
  Group subgroup(const std::string& name, std::span<const int> ranks) const;

  // What the collectives are made of: the mover of host memory, and that of a GPU's, which the
  // first call makes together with all other members. A rank has one GPU.
  Transport& transport() const;
  DeviceTransport& device_transport(Device device) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace megatron::comm
