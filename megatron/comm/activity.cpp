#include "megatron/comm/activity.h"

#include <utility>

namespace megatron::comm {

void Activity::begin(std::string what) {
  const std::lock_guard lock(mutex_);
  scopes_.push_back(std::move(what));
}

void Activity::end() {
  const std::lock_guard lock(mutex_);
  scopes_.pop_back();
  ended_ = Clock::now();
}

std::optional<std::string> Activity::what() const {
  const std::lock_guard lock(mutex_);
  if (scopes_.empty()) return {};
  return scopes_.back();
}

std::optional<Activity::Clock::time_point> Activity::last() const {
  const std::lock_guard lock(mutex_);
  return scopes_.empty() ? ended_ : Clock::now();
}

}  // namespace megatron::comm
