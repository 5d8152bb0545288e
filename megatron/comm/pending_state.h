#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/group.h"
#include "megatron/device/device.h"

namespace megatron::comm {

class UnfinishedExchange;

// The state of one pending collective.
struct Pending::State {
  State() = default;
  explicit State(Device gpu);  // with an event
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Stream stream;                       // the stream that started it
  void* done = nullptr;                // a GPU's event, without a time; null on the CPU
  UnfinishedExchange* rest = nullptr;  // the host's remaining part of an exchange, if any,
  Stream own;                          // and the stream for it
  std::vector<Transfer> receives;      // the remaining receives on the CPU
  std::optional<Group> group;          // keeps the transport
};

// Unused states of a group's collectives on a GPU. States and their events are reused, because
// creating them takes longer than queueing a copy.
class PendingStates {
 public:
  std::unique_ptr<Pending::State> take(Device gpu);
  void give_back(std::unique_ptr<Pending::State> state);

 private:
  std::vector<std::unique_ptr<Pending::State>> idle_;
};

}  // namespace megatron::comm
