#include "megatron/training/live_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/log.h"
#include "megatron/training/web_service.h"

namespace megatron {
namespace {

constexpr size_t kRowsPerRequest = 500;

}  // namespace

LiveRun::LiveRun(std::unique_ptr<RunService> service, std::function<void(const RunRow&)> keep,
                 std::string remedy, const Pace& pace)
    : service_(std::move(service)),
      keep_(std::move(keep)),
      remedy_(std::move(remedy)),
      pace_(pace) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    is_refused_ = true;
    warn_of("a thread that sends the run did not start: " + error.code().message());
  }
}

LiveRun::~LiveRun() { finish(false); }

void LiveRun::add(RunRow row) {
  const std::scoped_lock lock(mutex_);
  if (is_refused_ || is_finishing_ || rows_.size() >= pace_.max_rows) return keep_row(row);
  rows_.push_back(std::move(row));
  wake_.notify_one();
}

bool LiveRun::finish(bool has_failed) {
  {
    const std::scoped_lock lock(mutex_);
    has_failed_ = has_failed_ || has_failed;
    is_finishing_ = true;
    wake_.notify_one();
  }
  if (!thread_.joinable()) return is_complete_;
  thread_.join();
  for (const RunRow& row : rows_) keep_row(row);
  rows_.clear();
  if (num_kept_ > 0) {
    warn(fmt::format("{} rows of the run were not sent; {}", num_kept_, remedy_));
  }
  is_complete_ = is_complete_ && num_kept_ == 0;
  return is_complete_;
}

void LiveRun::keep_row(const RunRow& row) {
  num_kept_ += 1;
  keep_(row);
}

void LiveRun::run() {
  std::unique_lock lock(mutex_);
  std::chrono::milliseconds pause = pace_.first_retry;
  while (true) {
    const size_t count = std::min(rows_.size(), kRowsPerRequest);
    const std::vector<RunRow> rows(rows_.begin(),
                                   rows_.begin() + static_cast<std::ptrdiff_t>(count));
    const bool is_end = is_finishing_ && count == rows_.size();
    lock.unlock();
    const bool is_sent = try_once(rows, is_end);
    lock.lock();
    if (is_sent) {
      rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(count));
      if (is_end) {
        is_complete_ = true;
        return;
      }
      pause = pace_.first_retry;
      wake_.wait_for(lock, pace_.heartbeat, [&] { return is_finishing_ || !rows_.empty(); });
      continue;
    }
    if (is_refused_ || is_finishing_) return;
    wake_.wait_for(lock, pause, [&] { return is_finishing_; });
    pause = std::min(2 * pause, pace_.last_retry);
  }
}

bool LiveRun::try_once(std::span<const RunRow> rows, bool is_end) {
  try {
    if (!has_started_) {
      print_line("> the run is shown at " + service_->start());
      has_started_ = true;
    }
    service_->send(rows);
    if (is_end) service_->finish(has_failed_);
    return true;
  } catch (const WebError& error) {
    warn_of(error.what());
    if (error.may_pass()) return false;
  } catch (const std::exception& error) {  // an answer of another form
    warn_of(error.what());
  }
  const std::scoped_lock lock(mutex_);
  is_refused_ = true;
  for (const RunRow& row : rows_) keep_row(row);
  rows_.clear();
  return false;
}

void LiveRun::warn_of(const std::string& reason) {
  if (std::exchange(has_warned_, true)) return;
  warn(fmt::format("{}; the training goes on; {}", reason, remedy_));
}

}  // namespace megatron
