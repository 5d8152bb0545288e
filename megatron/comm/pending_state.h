#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/group.h"
#include "megatron/device/device.h"

namespace megatron::comm {

class UnfinishedExchange;

// Everything about one collective under way.
struct Pending::State {
  State() = default;
  explicit State(Device gpu);  // with an event
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Stream stream;                       // that started it
  void* done = nullptr;                // an event of a GPU, without a time; null on the CPU
  UnfinishedExchange* rest = nullptr;  // what the host does for messages, if anything,
  Stream own;                          // and the stream on which it queues that
  std::vector<Transfer> receives;      // the same on the CPU
  std::optional<Group> group;          // keeps the transport
};

// The states of a group's collectives on a GPU that nothing uses now. A state and its event are
// used again and again: to make them takes longer than to queue a copy.
class PendingStates {
 public:
  std::unique_ptr<Pending::State> take(Device gpu);
  void give_back(std::unique_ptr<Pending::State> state);

 private:
  std::vector<std::unique_ptr<Pending::State>> idle_;
};

}  // namespace megatron::comm
