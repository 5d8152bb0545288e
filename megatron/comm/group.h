#pragma once

#include <memory>
#include <span>
#include <string>

namespace megatron::comm {

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

  Transport& transport() const { return *transport_; }

 private:
  std::shared_ptr<Transport> transport_;
};

}  // namespace megatron::comm
