#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/activity.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/flight_recorder.h"

namespace megatron::comm {

// The members of a group, and this rank's position among them.
struct Membership {
  std::string name;
  int rank = 0;                  // this rank's position in the group
  std::vector<int> world_ranks;  // of all members, in the order of the group
};

// The call that sends or receives the message.
Call call_of(const Transfer& transfer);

class PendingStates;
class ThreadGroup;

namespace nccl {
class Watchdog;
}

// Shared state of all groups of one rank.
struct RankContext {
  std::atomic<std::chrono::milliseconds> timeout{std::chrono::minutes(10)};  // of one call
  FlightRecorder recorder;
  Activity activity;
  std::vector<std::string> hosts;  // of the world's ranks; empty if there is only one host
  int local_rank = 0;              // among the ranks of this host, and their number
  int local_size = 1;
  std::shared_ptr<nccl::Watchdog> watchdog;  // of the rank's GPU, once it has communicated
  // Counts groups of equal name and members, to tell them apart.
  std::map<std::pair<std::string, std::vector<int>>, int> num_groups;
};

// Moves host memory between the members of a group of at least two threads or processes.
// collectives.cpp checks the arguments and is the only caller.
class Transport {
 public:
  Transport(Membership membership, std::shared_ptr<RankContext> context);
  virtual ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return membership_.rank; }
  int size() const { return static_cast<int>(membership_.world_ranks.size()); }
  const Membership& membership() const { return membership_; }
  RankContext& context() const { return *context_; }
  const std::shared_ptr<RankContext>& shared() const { return context_; }

  // A group of at least two of the members.
  virtual std::shared_ptr<Transport> subgroup(Membership membership) = 0;

  // One collective of `call.count` elements (see Call), `in` and `out` as in collectives.h:
  // all_reduce and broadcast have out == in, a barrier has neither. Throws CommError.
  virtual void run(const Call& call, const void* in, void* out) = 0;
  virtual void exchange(std::span<const Transfer> transfers) = 0;

  // The reason to stop waiting, if a rank of the world is known to have failed.
  virtual std::optional<std::string> failure() const { return {}; }
  // Checks for failures that no call has noticed yet. Thread safe.
  virtual void check_for_failures() {}
  // For polling waits outside of run() and exchange(): checks for failures, and returns true if a
  // wait that began at `begin` may go on: until the time-out, and longer while another rank is at
  // work (Working).
  virtual bool may_keep_waiting(std::chrono::steady_clock::time_point begin);
  // A member's last call (FlightRecorder::last), if this rank can see it.
  virtual std::string last_call(int member) const;
  // Prints the last calls of all visible ranks to standard error; any rank may call it.
  virtual void print_flight_records() const;
  // The members' shared state if they are threads of this process, else null.
  virtual ThreadGroup* threads() { return nullptr; }

  // "rank 1 (rank 5 of the world)", with "on gpu7" if hosts are known
  std::string name_of(int member) const;
  // "all_reduce(sum, 16 x float32) in group tensor"
  std::string name_of(const Call& call) const;

 private:
  const Membership membership_;
  const std::shared_ptr<RankContext> context_;
};

// The host's remaining part of an exchange of messages. Owned by its transport.
class UnfinishedExchange {
 public:
  // Call once, when the messages are needed. The transport may then reuse the object for another
  // exchange.
  virtual void finish() = 0;

 protected:
  ~UnfinishedExchange() = default;
};

// Moves GPU memory between the members of a group of at least two. Calls queue work on a stream and
// return.
class DeviceTransport {
 public:
  DeviceTransport();
  virtual ~DeviceTransport();
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  virtual void run(const Call& call, const void* in, void* out, Stream stream) = 0;
  virtual void exchange(std::span<const Transfer> transfers, Stream stream) = 0;
  // Queues the part of an exchange that does not need the other members. Returns the rest; null if
  // there is none.
  virtual UnfinishedExchange* start_exchange(std::span<const Transfer> transfers, Stream stream) {
    exchange(transfers, stream);
    return nullptr;
  }
  // "NCCL", ..., for messages.
  virtual const char* name() const = 0;
  // See comm::can_record() and comm::launch_barrier().
  virtual bool can_record() { return false; }
  virtual void launch_barrier() {}
  // The group's own high-priority stream, for work that overlaps the rank's stream.
  virtual Stream own_stream() = 0;
  // The states of this rank's pending collectives.
  PendingStates& pending_states() { return *pending_states_; }

 private:
  const std::unique_ptr<PendingStates> pending_states_;
};

// The transport of a single rank: collectives are the identity; messages are a bug.
std::shared_ptr<Transport> make_self_transport(Membership membership);

}  // namespace megatron::comm
