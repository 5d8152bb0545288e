#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/processes/shared_segment.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// The first non-empty text, in rank order, truncated to 200 bytes. All members call it and get the
// same.
std::string first_problem(Transport& host, const std::string& own);

// The counterpart of ThreadGroup for processes of one host: barriers within microseconds, and short
// messages, in shared memory. Failures and time-outs are those of the group's Transport.
//
// Each member counts its arrivals. A barrier is complete when all members have arrived as often as
// this one. Nothing is rolled back after a failure: the group then ends with its ranks.
class ProcessGroup {
 public:
  static constexpr size_t kPartBytes = 128;
  static constexpr uint64_t kMessages = 128;  // queue capacity from one member to another

  // All members call it; `host` outlives the result. Null on all of them, with the reason, if they
  // are not processes of one host with shared memory. The caller owns `extra_bytes` of the memory.
  struct Made {
    std::unique_ptr<ProcessGroup> group;
    std::string problem;
  };
  static Made make(Transport& host, int64_t extra_bytes);

  // Barrier; afterwards the members' parts, of at most kPartBytes, may be read until leave().
  // Throws CommError if one does not arrive, and on all members if they make different calls.
  void enter(const Call& call, std::span<const std::byte> part);
  // A member's part. REQUIRES: reads at most as many bytes as the member passed.
  const std::byte* part_of(int member) const { return place(member).part.data(); }
  // Barrier after reading. Throws CommError if a process has failed.
  void leave();

  // Messages of at most kPartBytes, numbered from 0 for each sender and receiver. post() waits only
  // if kMessages are not taken yet. receive() waits for the sender's next message; take() marks it
  // as taken.
  uint64_t num_posted(int receiver) const;
  void post(const Call& call, std::span<const std::byte> bytes);
  uint64_t receive(const Call& call, std::span<std::byte> bytes);
  void take(int sender);
  bool is_taken(int receiver, uint64_t message) const;

  // Waits until happened(): spins, then sleeps for an eighth of the time that it has waited. The
  // messages of its CommError say "waited 10 s for " and whom().
  void wait_until(const Call& call, const std::function<bool()>& happened,
                  const std::function<std::string()>& whom) const;
  // "rank 1 (rank 5 of the world) (last call in this group: ...)"
  std::string name_and_call(int member) const;

  // Initially zero, aligned to a page.
  std::span<std::byte> extra() const { return {segment_.data(), extra_bytes_}; }
  SharedSegment& segment() { return segment_; }
  void spin_for(std::chrono::microseconds time) { spin_time_ = time; }

 private:
  struct alignas(64) Place {
    std::atomic<uint64_t> arrivals{0};
    Call call;
    std::array<std::byte, kPartBytes> part{};
  };
  struct Message {
    Call call;  // according to the sender
    std::array<std::byte, kPartBytes> bytes{};
  };
  struct alignas(64) Mailbox {  // from one member to another
    std::atomic<uint64_t> num_posted{0};
    alignas(64) std::atomic<uint64_t> num_taken{0};
    alignas(64) std::array<Message, kMessages> messages;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share atomics");

  ProcessGroup(Transport& host, SharedSegment segment, size_t extra_bytes);
  static int64_t bytes_of(int size, int64_t extra_bytes);

  Place& place(int member) const;
  Mailbox& mailbox(int sender, int receiver) const;
  void arrive(const Call& call);
  void check_agreement();

  Transport& host_;
  SharedSegment segment_;
  const size_t extra_bytes_;
  const bool may_spin_;  // every rank of this host has a core
  std::chrono::microseconds spin_time_{20};
  std::vector<uint64_t> num_received_;  // by sender
};

}  // namespace megatron::comm
