#pragma once

#include <memory>
#include <span>
#include <string>

#include "megatron/device/device.h"

namespace megatron::comm {

class DeviceTransport;
class Transport;

// This rank's membership in an ordered set of ranks that communicate. Copies are cheap handles of
// the same membership. Every member calls the collectives (collectives.h) in the same order. One
// thread at a time uses the groups of a rank.
class Group {
 public:
  // A group of this rank alone: every collective is the identity and costs nothing.
  Group();
  explicit Group(std::shared_ptr<Transport> transport);

  int rank() const;  // position of this rank in the group
  int size() const;
  // "tensor", "data", ..., for messages.
  const std::string& name() const;
  // Positions of the members in the world, in the order of the group.
  std::span<const int> world_ranks() const;

  // The group of the members at `ranks` (positions in this group, in the order of the new one; they
  // include this rank). Only these members call it, and none waits. Members that make several
  // groups of the same name and ranks make them in the same order.
  Group subgroup(const std::string& name, std::span<const int> ranks) const;

  // The implementations of the collectives, for host memory and for GPU memory. All members create
  // the latter together, at their first call. A rank has one GPU.
  Transport& transport() const;
  DeviceTransport& device_transport(Device device) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace megatron::comm
