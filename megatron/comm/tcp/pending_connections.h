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

// Connections that are not authenticated yet. Each has a few seconds to prove that it knows the
// secret and to send its first record; beyond the limit the oldest is dropped. A single warning
// reports connections from outside the job.
class PendingConnections {
 public:
  PendingConnections(Purpose purpose, const Secret& secret, size_t limit)
      : purpose_(purpose), secret_(secret), limit_(limit) {}

  // Accepts all connections waiting at the listener.
  void accept(int listener);
  // Reads from all connections. Calls `admit` with the channel and the first record of each that
  // has sent it; admit returns true if the record belongs to this job.
  void advance(const std::function<bool(Channel channel, const std::string& record)>& admit);
  void add_to(std::vector<pollfd>& requests) const;
  size_t size() const { return connections_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    Channel channel;
    std::string address;
    Clock::time_point since;
  };
  void warn_once(const Connection& connection, const std::string& problem);

  const Purpose purpose_;
  const Secret secret_;
  const size_t limit_;
  std::list<Connection> connections_;  // oldest first
  bool has_warned_ = false;
};

}  // namespace megatron::comm::tcp
