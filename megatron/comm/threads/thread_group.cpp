#include "megatron/comm/threads/thread_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <thread>

#include "megatron/comm/reduce.h"
#include "megatron/comm/spin_pause.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBroken = uint64_t{1} << 31;
constexpr size_t kMaxSpareBuffers = 4;

uint32_t phase_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{} s", static_cast<double>(time.count()) / 1000);
}

}  // namespace

struct ThreadGroup::Message {
  Call call;  // of the sender
  std::unique_ptr<std::byte[]> data;
  int64_t capacity = 0;
};

struct ThreadGroup::Mailbox {  // belongs to one receiver
  std::mutex mutex;
  std::condition_variable arrived;
  std::atomic<uint64_t> num_posted{0};
  std::map<int, std::deque<Message>> from;
  std::vector<Message> spare;  // buffers for reuse: fresh memory costs more than the copy
};

ThreadGroup::ThreadGroup(ThreadWorld& world, std::vector<int> world_ranks)
    : world_(world),
      world_ranks_(std::move(world_ranks)),
      size_(world_ranks_.size()),
      may_spin_(world.size() <= static_cast<int>(std::thread::hardware_concurrency())),
      places_(std::make_unique<Place[]>(size_)),
      mailboxes_(std::make_unique<Mailbox[]>(size_)) {}

ThreadGroup::~ThreadGroup() = default;

class ThreadGroup::WaitLimit {
 public:
  WaitLimit(const ThreadWorld& world, std::chrono::milliseconds timeout)
      : world_(world), timeout_(timeout), deadline_(Clock::now() + timeout) {}

  Clock::time_point deadline() const { return deadline_; }
  // True after the time-out, except while a rank is at work.
  bool is_over() {
    if (Clock::now() < deadline_) return false;
    const std::optional<Clock::time_point> work = world_.last_work();
    if (!work || *work + timeout_ <= deadline_) return true;
    deadline_ = *work + timeout_;
    if (!std::exchange(has_said_, true)) {
      warn(fmt::format("waiting beyond the time-out of {}: {}", seconds(timeout_), world_.work()));
    }
    return Clock::now() >= deadline_;
  }

 private:
  const ThreadWorld& world_;
  const std::chrono::milliseconds timeout_;
  Clock::time_point deadline_;
  bool has_said_ = false;
};

std::optional<uint32_t> ThreadGroup::arrive(int rank, const Call& call, const Transport* self) {
  const uint64_t before = state_.fetch_add(1);
  if ((before & kBroken) != 0) throw_released(*self, call);
  places_[static_cast<size_t>(rank)].arrivals.fetch_add(1);
  if ((before & (kBroken - 1)) + 1 < size_) return phase_of(before);
  state_.store(static_cast<uint64_t>(phase_of(before) + 1) << 32);
  if (num_sleepers_.load() > 0) wake();
  return {};
}

bool ThreadGroup::is_over(uint32_t phase) const { return phase_of(state_.load()) != phase; }

template <class F>
bool ThreadGroup::spin(const F& happened) const {
  if (!may_spin_) return happened();
  const auto deadline = std::chrono::steady_clock::now() + spin_time_.load();
  while (std::chrono::steady_clock::now() < deadline) {
    for (int i = 0; i < 8; ++i) {
      if (happened()) return true;
      spin_pause();
    }
    if (world_.has_departures()) return false;
  }
  return happened();
}

bool ThreadGroup::withdraw(uint32_t phase) {
  uint64_t state = state_.load();
  while (phase_of(state) == phase) {
    if ((state & (kBroken - 1)) == size_) {  // the last one is about to open the next phase
      std::this_thread::yield();
      state = state_.load();
    } else if (state_.compare_exchange_weak(state, state | kBroken)) {
      return true;
    }
  }
  return false;
}

void ThreadGroup::enter(const Transport& self, const Call& call, const void* in, void* out) {
  Place& place = places_[static_cast<size_t>(self.rank())];
  place.call = call;
  place.in = in;
  place.out = out;
  const std::optional<uint32_t> phase = arrive(self.rank(), call, &self);
  if (phase && !spin([&] { return is_over(*phase); })) sleep(self, call, *phase);
  check_agreement(self);
}

void ThreadGroup::sleep(const Transport& self, const Call& call, uint32_t phase) {
  const std::chrono::milliseconds timeout = self.context().timeout;
  WaitLimit limit(world_, timeout);
  std::unique_lock lock(mutex_);
  num_sleepers_.fetch_add(1);
  bool is_late = false;
  std::vector<int> gone;
  while (!is_over(phase)) {
    if (world_.has_departures()) {
      for (const int member : missing(self.rank())) {
        if (world_.has_ended(world_ranks_[static_cast<size_t>(member)])) gone.push_back(member);
      }
    }
    const bool is_released = world_.has_departures() && world_.failure();
    if ((is_late || is_released || !gone.empty()) && withdraw(phase)) break;
    is_late =
        over_.wait_until(lock, limit.deadline()) == std::cv_status::timeout && limit.is_over();
  }
  num_sleepers_.fetch_sub(1);
  lock.unlock();
  if (is_over(phase)) return;

  // Later members see that the barrier is broken and read the reason: record the reason first.
  const auto fail = [&](const std::string& why) {
    const std::string message =
        fmt::format("{}: {} {}", self.name_of(call), self.name_of(self.rank()), why);
    world_.rank_failed(world_ranks_[static_cast<size_t>(self.rank())], message);
    throw CommError(message);
  };
  if (world_.failure()) throw_released(self, call);
  if (!gone.empty()) {
    fail(fmt::format("waits in vain for {}, whose program has ended", missing_text(self, gone)));
  }
  world_.print_flight_records();
  fail(fmt::format("waited {} for {}", seconds(timeout), missing_text(self, missing(self.rank()))));
}

void ThreadGroup::member_failed(int member, const std::string& message) {
  world_.rank_failed(world_ranks_[static_cast<size_t>(member)], message);
}

void ThreadGroup::check_agreement(const Transport& self) {
  const std::span<const Place> all = places();
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const Place& place) { return place.call != all[0].call; });
  if (other == all.end()) return;
  const std::string message =
      fmt::format("group {}: members made different calls: {} called {}, {} called {}",
                  self.membership().name, self.name_of(0), all[0].call.str(),
                  self.name_of(static_cast<int>(other - all.begin())), other->call.str());
  leave(self.rank());  // the others have now read this rank's call
  throw CommError(message);
}

void ThreadGroup::leave(int rank) {
  const std::optional<uint32_t> phase = arrive(rank, {}, nullptr);
  if (!phase || spin([&] { return is_over(*phase); })) return;
  std::unique_lock lock(mutex_);
  num_sleepers_.fetch_add(1);
  over_.wait(lock, [&] { return is_over(*phase); });
  num_sleepers_.fetch_sub(1);
}

std::vector<int> ThreadGroup::missing(int rank) const {
  std::vector<int> members;
  const uint64_t arrivals = places_[static_cast<size_t>(rank)].arrivals.load();
  for (size_t i = 0; i < size_; ++i) {
    if (places_[i].arrivals.load() < arrivals) members.push_back(static_cast<int>(i));
  }
  return members;
}

std::string ThreadGroup::missing_text(const Transport& self, std::span<const int> members) const {
  std::string text;
  for (const int member : members) {
    text += fmt::format("{}{} (last call: {})", text.empty() ? "" : ", ", self.name_of(member),
                        self.last_call(member));
  }
  return text;
}

void ThreadGroup::throw_released(const Transport& self, const Call& call) const {
  // The rank that broke the barrier is about to report the reason.
  std::optional<std::string> failure;
  while (!(failure = self.failure())) std::this_thread::yield();
  throw CommError(fmt::format("{}: {} was released because {}", self.name_of(call),
                              self.name_of(self.rank()), *failure));
}

ThreadGroup::Message ThreadGroup::buffer_for(Mailbox& box, int64_t bytes) {
  {
    const std::lock_guard lock(box.mutex);
    const auto fits = [&](const Message& message) { return message.capacity >= bytes; };
    const auto found = std::find_if(box.spare.begin(), box.spare.end(), fits);
    if (found != box.spare.end()) {
      Message message = std::move(*found);
      box.spare.erase(found);
      return message;
    }
  }
  Message message;
  message.data = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  message.capacity = bytes;
  return message;
}

void ThreadGroup::post(const Transport& self, const Call& call, std::span<const std::byte> bytes) {
  Mailbox& box = mailboxes_[static_cast<size_t>(call.peer)];
  const auto size = static_cast<int64_t>(bytes.size());
  Message message = buffer_for(box, size);
  message.call = call;
  copy_host(message.data.get(), bytes.data(), size);
  {
    const std::lock_guard lock(box.mutex);
    box.from[self.rank()].push_back(std::move(message));
    box.num_posted.fetch_add(1);
  }
  box.arrived.notify_one();
}

void ThreadGroup::receive(const Transport& self, const Call& call, std::span<std::byte> bytes) {
  const std::chrono::milliseconds timeout = self.context().timeout;
  WaitLimit limit(world_, timeout);
  const int sender = world_ranks_[static_cast<size_t>(call.peer)];
  Mailbox& box = mailboxes_[static_cast<size_t>(self.rank())];
  std::unique_lock lock(box.mutex);
  std::deque<Message>& queue = box.from[call.peer];
  for (bool is_hopeful = true; queue.empty() && is_hopeful;) {
    const uint64_t before = box.num_posted.load();
    lock.unlock();
    is_hopeful = spin([&] { return box.num_posted.load() != before; });
    lock.lock();
  }
  const auto fail = [&](const std::string& why) {
    lock.unlock();
    throw CommError(fmt::format("{}: {} {}", self.name_of(call), self.name_of(self.rank()), why));
  };
  while (queue.empty()) {
    // Checked before another look at the queue: messages sent before the end still arrive.
    const bool has_ended = world_.has_departures() && world_.has_ended(sender);
    if (world_.has_departures() && world_.failure()) {
      lock.unlock();
      throw_released(self, call);
    }
    if (has_ended) {
      fail(fmt::format("waits in vain for {}, whose program has ended", self.name_of(call.peer)));
    }
    if (box.arrived.wait_until(lock, limit.deadline()) == std::cv_status::timeout &&
        queue.empty() && limit.is_over()) {
      world_.print_flight_records();
      fail(fmt::format("waited {} for {}", seconds(timeout),
                       missing_text(self, std::span(&call.peer, 1))));
    }
  }
  Message message = std::move(queue.front());
  queue.pop_front();
  if (message.call.count != call.count || message.call.dtype != call.dtype) {
    fail(fmt::format("expects a message that {} did not send: {}", self.name_of(call.peer),
                     message.call.str()));
  }
  lock.unlock();
  copy_host(bytes.data(), message.data.get(), static_cast<int64_t>(bytes.size()));
  lock.lock();
  if (box.spare.size() < kMaxSpareBuffers) box.spare.push_back(std::move(message));
}

void ThreadGroup::wake() {
  {
    const std::lock_guard lock(mutex_);
  }  // a rank that is about to sleep does so first and is woken
  over_.notify_all();
  if (!world_.has_departures()) return;
  for (size_t i = 0; i < size_; ++i) {
    { const std::lock_guard lock(mailboxes_[i].mutex); }
    mailboxes_[i].arrived.notify_all();
  }
}

}  // namespace megatron::comm
