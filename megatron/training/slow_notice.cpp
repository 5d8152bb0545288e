#include "megatron/training/slow_notice.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/core/start_threads.h"
#include "megatron/training/console_log.h"

namespace megatron {
namespace {

double seconds_of(SlowNotice::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

SlowNotice::SlowNotice(const Options& options, std::function<void(const std::string&)> print)
    : options_(options),
      print_(std::move(print)),
      iteration_(options.first_iteration),
      last_line_(started_) {
  threads_ = start_threads(
      1, [this] { watch(); }, "lines about slow iterations");
}

SlowNotice::~SlowNotice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SlowNotice::finished(int64_t iteration) {
  iteration_ = iteration;
  fraction_ = 0;
  const int64_t interval = options_.log_interval;
  if (interval > 0 && iteration % interval == 0) last_line_ = Clock::now();
}

void SlowNotice::advanced(double fraction) { fraction_ = fraction; }

void SlowNotice::watch() {
  Clock::time_point silent_since = last_line_;
  Clock::duration patience = options_.patience;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_until(lock, silent_since + patience, [this] { return ends_; })) {
    if (const Clock::time_point line = last_line_; line != silent_since) {
      silent_since = line;
      patience = options_.patience;
      continue;
    }
    print_(text(Clock::now()));
    patience *= 2;
  }
}

std::string SlowNotice::text(Clock::time_point now) const {
  const int64_t iteration = iteration_;
  const int64_t done = iteration - options_.first_iteration;
  std::string text =
      fmt::format("still training after {}: {} of {} iterations are done",
                  duration_text(seconds_of(now - started_)), iteration, options_.last_iteration);
  if (done > 0) {
    const double each = seconds_of(now - started_) / static_cast<double>(done);
    text +=
        fmt::format(", the others take about {}",
                    duration_text(each * static_cast<double>(options_.last_iteration - iteration)));
  } else if (const double fraction = fraction_; fraction > 0) {
    text += fmt::format(", and {:.1f} % of the next one; an iteration takes about {}",
                        100 * fraction, duration_text(seconds_of(now - started_) / fraction));
  } else if (options_.least_seconds > 0) {
    text += fmt::format("; by its operations an iteration takes {} or more",
                        duration_text(options_.least_seconds));
  }
  if (options_.log_interval > 1) {
    text += fmt::format("; --log-interval {} prints a line every {} iterations",
                        options_.log_interval, options_.log_interval);
  }
  return text;
}

}  // namespace megatron
