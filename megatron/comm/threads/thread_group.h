#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "megatron/comm/threads/thread_world.h"

namespace megatron::comm {

// Shared state of one group's members. In a collective every member calls enter() with its
// pointers, reads the others' memory, writes its own share of the result, and calls leave(). This
// takes no lock unless a member has to sleep.
class ThreadGroup {
 public:
  ThreadGroup(ThreadWorld& world, std::vector<int> world_ranks);
  ~ThreadGroup();

  // A member's arguments of a collective.
  struct alignas(64) Place {
    Call call;
    const void* in = nullptr;
    void* out = nullptr;
    std::atomic<uint64_t> arrivals{0};  // at enter() and leave() so far
  };

  // Barrier; afterwards the members' places may be read until leave(). Throws CommError if one does
  // not arrive, and on all members if they make different calls; then no member accesses this one's
  // memory. `self` is the caller.
  void enter(const Transport& self, const Call& call, const void* in, void* out);
  std::span<const Place> places() const { return {places_.get(), size_}; }
  // Barrier after reading. Between enter() and leave() a member can neither throw nor wait, so this
  // always returns. May be called several times.
  void leave(int rank);

  // Messages. post() copies the bytes and returns; receive() waits for that sender's next message
  // of the same size. `call` describes the bytes.
  void post(const Transport& self, const Call& call, std::span<const std::byte> bytes);
  void receive(const Transport& self, const Call& call, std::span<std::byte> bytes);

  // Sets how long a rank with its own core spins before it sleeps. Waking takes tens of
  // microseconds, too long for ranks that only queue work on GPUs.
  void spin_for(std::chrono::microseconds time) { spin_time_ = time; }

  void wake();

  // Reports that a member's call on a GPU failed: later calls of all ranks throw CommError with the
  // message.
  void member_failed(int member, const std::string& message);

 private:
  struct Message;
  struct Mailbox;

  // Returns the phase that ends when all have arrived; none if this rank was the last. Throws
  // CommError if the barrier is broken; a barrier of leave() never is, and needs no `self`.
  std::optional<uint32_t> arrive(int rank, const Call& call, const Transport* self);
  bool is_over(uint32_t phase) const;
  // Polls happened() for a while; false if it did not happen, or a rank has departed.
  template <class F>
  bool spin(const F& happened) const;
  // Sleeps until the barrier has taken place. Throws CommError if it cannot.
  void sleep(const Transport& self, const Call& call, uint32_t phase);
  // Makes the barrier impossible; false if it has already taken place.
  bool withdraw(uint32_t phase);
  void check_agreement(const Transport& self);
  [[noreturn]] void throw_released(const Transport& self, const Call& call) const;
  // The members that have arrived less often than `rank`.
  std::vector<int> missing(int rank) const;
  std::string missing_text(const Transport& self, std::span<const int> members) const;
  Message buffer_for(Mailbox& box, int64_t bytes);
  // Limits a wait: a time-out after its beginning, or after a rank was last at work. Warns once.
  class WaitLimit;

  ThreadWorld& world_;
  const std::vector<int> world_ranks_;
  const size_t size_;
  const bool may_spin_;  // every rank has a core
  // About the time of a wake-up. On a busy machine spinning only blocks the awaited rank's core.
  std::atomic<std::chrono::microseconds> spin_time_{std::chrono::microseconds(20)};
  std::unique_ptr<Place[]> places_;
  std::unique_ptr<Mailbox[]> mailboxes_;

  // The upper half is the phase, the lower half the number of arrivals and kBroken.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable over_;
};

}  // namespace megatron::comm
