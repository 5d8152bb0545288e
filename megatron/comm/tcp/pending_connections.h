#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include <poll.h>

#include "megatron/comm/secret.h"
#include "megatron/comm/tcp/channel.h"

namespace megatron::comm::tcp {

// Connections that have not identified themselves yet. They may be strangers: each has a few
// seconds to prove itself and to send its first record, and if there are too many the oldest is
// dropped. One warning reports strangers.
class PendingConnections {
 public:
  PendingConnections(Purpose purpose, const Secret& secret, size_t limit)
      : purpose_(purpose), secret_(secret), limit_(limit) {}

  // Accepts all that wait at the listener.
  void accept(int listener);
  // Reads from all of them. Calls `admit` with the channel and the first record of each that has
  // sent it; admit returns whether the record belongs to this job.
  void advance(const std::function<bool(Channel channel, const std::string& record)>& admit);
  void add_to(std::vector<pollfd>& requests) const;
  size_t size() const { return guests_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Guest {
    Channel channel;
    std::string address;
    Clock::time_point since;
  };
  void warn_once(const Guest& guest, const std::string& problem);

  const Purpose purpose_;
  const Secret secret_;
  const size_t limit_;
  std::list<Guest> guests_;  // oldest first
  bool has_warned_ = false;
};

}  // namespace megatron::comm::tcp
