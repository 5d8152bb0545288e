#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/training/tracker.h"

namespace megatron {

// The page of `megatron report` of a run that goes on, served at http://host:port/ until the run
// ends (docs/report.md). Requests must name this machine, as those to `megatron serve` without a
// key (WebAccess).
class Dashboard final : public Tracker {
 public:
  struct Description {
    std::string host = "127.0.0.1";
    int64_t port = 0;       // 0: a free one
    std::string name = {};  // of the run
    ArgMap settings = {};
  };

  // Throws IoError if it cannot listen.
  explicit Dashboard(const Description& description);
  // Waits for responses in progress.
  ~Dashboard() override;

  // Queues the numbers; the threads of the server do everything else.
  void write(int64_t iteration, const NamedValues& values) override;

  int port() const;

 private:
  class Site;
  std::unique_ptr<Site> site_;
};

}  // namespace megatron
