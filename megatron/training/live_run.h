#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "megatron/training/console_log.h"

namespace megatron {

// The numbers of a run at an iteration.
struct RunRow {
  int64_t iteration = 0;
  double unix_seconds = 0;
  NamedValues values = {};
};

// A web service that shows a run while it trains. One thread calls it. Each call throws WebError
// and may then be repeated.
class RunService {
 public:
  virtual ~RunService() = default;
  // Creates the run; the address where it is shown.
  virtual std::string start() = 0;
  // Sends rows; without rows, tells the service that the run goes on.
  virtual void send(std::span<const RunRow> rows) = 0;
  virtual void finish(bool has_failed) = 0;
};

// Sends the rows of a run to a service on a thread of its own: add() never waits for a network. If
// the service fails, one warning says so and the thread tries again at growing intervals; a service
// that refuses a request is not asked again. Rows that the service does not get are kept instead.
class LiveRun {
 public:
  struct Pace {
    std::chrono::milliseconds first_retry{1000};  // doubles up to last_retry
    std::chrono::milliseconds last_retry{60'000};
    std::chrono::milliseconds heartbeat{30'000};  // send() without rows
    size_t max_rows = 10'000;                     // that wait to be sent
  };
  // keep: called for each row that is not sent, by one thread at a time. remedy: the end of the
  // warnings, says where such rows are ("wandb sync FOLDER sends them").
  LiveRun(std::unique_ptr<RunService> service, std::function<void(const RunRow&)> keep,
          std::string remedy, const Pace& pace);
  // finish(false), unless it was called.
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  void add(RunRow row);
  // Sends the waiting rows and the end of the run. A failure is not tried again: the end of a
  // training waits for a dead network once. True if the service has got all rows and the end.
  bool finish(bool has_failed);

 private:
  void run();
  bool try_once(std::span<const RunRow> rows, bool is_end);  // without the lock
  void keep_row(const RunRow& row);
  void warn_of(const std::string& reason);

  std::unique_ptr<RunService> service_;
  std::function<void(const RunRow&)> keep_;
  std::string remedy_;
  Pace pace_;

  bool has_started_ = false;  // of the sending thread alone
  bool has_warned_ = false;

  std::mutex mutex_;  // guards what follows, except the thread
  std::condition_variable wake_;
  std::deque<RunRow> rows_;
  int64_t num_kept_ = 0;
  bool is_refused_ = false;  // the service is not asked again
  bool is_finishing_ = false;
  bool has_failed_ = false;
  bool is_complete_ = false;

  std::thread thread_;  // none if the system allows no more
};

}  // namespace megatron
