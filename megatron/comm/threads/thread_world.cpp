#include "megatron/comm/threads/thread_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/comm/threads/thread_group.h"
#include "megatron/core/log.h"
#include "megatron/core/stacks.h"

namespace megatron::comm {

ThreadWorld::ThreadWorld(int size, std::chrono::milliseconds timeout)
    : ended_(static_cast<size_t>(size), false) {
  for (int i = 0; i < size; ++i) {
    ranks_.push_back(std::make_shared<RankContext>());
    ranks_.back()->timeout = timeout;
    ranks_.back()->local_rank = i;
    ranks_.back()->local_size = size;
  }
}

ThreadWorld::~ThreadWorld() = default;

const std::shared_ptr<RankContext>& ThreadWorld::rank(int rank) const {
  return ranks_[static_cast<size_t>(rank)];
}

ThreadGroup& ThreadWorld::group(const Membership& membership) {
  const std::vector<int>& members = membership.world_ranks;
  RankContext& context = *rank(members[static_cast<size_t>(membership.rank)]);
  const int number = context.num_groups[{membership.name, members}]++;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ThreadGroup>& group = groups_[{membership.name, members, number}];
  if (group == nullptr) group = std::make_unique<ThreadGroup>(*this, membership.world_ranks);
  return *group;
}

void ThreadWorld::rank_failed(int rank, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = {rank, message};
  }
  wake_all();
}

void ThreadWorld::rank_ended(int rank) {
  {
    const std::lock_guard lock(mutex_);
    ended_[static_cast<size_t>(rank)] = true;
  }
  wake_all();
}

bool ThreadWorld::has_ended(int rank) const {
  const std::lock_guard lock(mutex_);
  return ended_[static_cast<size_t>(rank)];
}

std::optional<std::chrono::steady_clock::time_point> ThreadWorld::last_work() const {
  std::optional<std::chrono::steady_clock::time_point> last;
  for (const std::shared_ptr<RankContext>& rank : ranks_) {
    auto time = rank->activity.last();
    if (!time) continue;
    const auto call = rank->recorder.under_way_since();
    if (call) time = std::min(*time, *call);  // since then it waits, too
    if (!last || *last < *time) last = time;
  }
  return last;
}

std::string ThreadWorld::work() const {
  for (int i = 0; i < size(); ++i) {
    const std::optional<std::string> what = rank(i)->activity.what();
    if (what && !rank(i)->recorder.under_way_since()) return fmt::format("rank {} is {}", i, *what);
  }
  return "a rank was at work until now";
}

std::optional<ThreadWorld::Failure> ThreadWorld::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ThreadWorld::print_flight_records() {
  if (has_printed_.exchange(true)) return;
  std::string text = "the last calls of all ranks (number, group, call, state):\n";
  for (int i = 0; i < size(); ++i) {
    text += fmt::format("rank {}\n{}", i, rank(i)->recorder.str());
  }
  const LogScope aloud(true);  // the calling rank may be silenced
  warn(text);
  warn("the calls of all threads, innermost first:\n" + stacks_of_all_threads());
}

void ThreadWorld::wake_all() {
  has_departures_.store(true, std::memory_order_release);
  std::vector<ThreadGroup*> groups;  // take no group's lock inside this one
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, group] : groups_) groups.push_back(group.get());
  }
  for (ThreadGroup* const group : groups) group->wake();
}

}  // namespace megatron::comm
