#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "megatron/comm/threads/thread_world.h"

namespace megatron::comm {

// What the members of one group share. A collective is: every member says what it brings, meet(),
// every member reads what it needs from the others' memory and writes its own share of the result,
// part(). No lock is taken on this way unless a member has to sleep.
class ThreadGroup {
 public:
  ThreadGroup(ThreadWorld& world, std::vector<int> world_ranks);

  // What a member brings to a collective.
  struct alignas(64) Place {
    Call call;
    const void* in = nullptr;
    void* out = nullptr;
    std::atomic<uint64_t> arrivals{0};  // at meet() and part() so far
  };

  // Waits for all members; what they brought may be read until part(). Throws CommError when one
  // does not come, and on all members when they make different calls; nobody then touches this
  // one's memory. `self` is the caller.
  void meet(const Transport& self, const Call& call, const void* in, void* out);
  std::span<const Place> places() const { return {places_.get(), size_}; }
  // Waits until all members have read. Between meet() and here a member can neither throw nor wait,
  // so this always returns. May be called several times: each is a point that all have reached.
  void part(int rank);

  // Messages. post() copies the bytes and returns; receive() waits for the next ones of that
  // sender, as many as it takes. The calls of both say what the bytes stand for.
  void post(const Transport& self, const Call& call, std::span<const std::byte> bytes);
  void receive(const Transport& self, const Call& call, std::span<std::byte> bytes);

  // How long a rank that has a core for itself looks before it sleeps: it takes tens of
  // microseconds to wake up, which ranks that only queue work on GPUs lose for nothing.
  void spin_for(std::chrono::microseconds time) { spin_time_ = time; }

  void wake();

 private:
  struct Message {
    Call call;  // as the sender says it
    std::unique_ptr<std::byte[]> data;
    int64_t capacity = 0;
  };
  struct Mailbox {  // of one receiver
    std::mutex mutex;
    std::condition_variable arrived;
    std::atomic<uint64_t> num_posted{0};
    std::map<int, std::deque<Message>> from;
    std::vector<Message> spare;  // buffers to use again: fresh memory costs more than the copy
  };

  // The phase that ends when all have arrived; none when this rank was the last to arrive. Throws
  // CommError when the meeting is broken; that of part() never is, and needs no `self`.
  std::optional<uint32_t> arrive(int rank, const Call& call, const Transport* self);
  bool is_over(uint32_t phase) const;
  // Looks whether `happened()` again and again for a while; false: it did not, or there is news.
  template <class F>
  bool spin(const F& happened) const;
  // Until the meeting has taken place. Throws CommError when it does not.
  void sleep(const Transport& self, const Call& call, uint32_t phase);
  // Makes the meeting impossible; false when it has taken place all the same.
  bool withdraw(uint32_t phase);
  void check_agreement(const Transport& self);
  [[noreturn]] void throw_released(const Transport& self, const Call& call) const;
  // The members that have arrived less often than `rank`.
  std::vector<int> missing(int rank) const;
  std::string missing_text(const Transport& self, std::span<const int> members) const;
  Message buffer_for(Mailbox& box, int64_t bytes);
  // Until when to wait on: a time-out after `begin`, or after a rank was last at work. Says so
  // once.
  class Patience;

  ThreadWorld& world_;
  const std::vector<int> world_ranks_;
  const size_t size_;
  const bool may_spin_;  // every rank has a core
  // A wake-up takes about as long; on a busy machine spinning only keeps the awaited from its core.
  std::atomic<std::chrono::microseconds> spin_time_{std::chrono::microseconds(20)};
  std::unique_ptr<Place[]> places_;
  std::unique_ptr<Mailbox[]> mailboxes_;

  // Phase in the upper half, in the lower half how many have arrived and kBroken.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable over_;
};

}  // namespace megatron::comm
