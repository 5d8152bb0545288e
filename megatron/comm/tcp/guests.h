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

// Those who connected and have not yet said who they are. They may be strangers: each has a few
// seconds to prove itself and to send its first record, and when there are too many the oldest one
// goes. One warning tells of strangers.
class Guests {
 public:
  Guests(Purpose purpose, const Secret& secret, size_t limit)
      : purpose_(purpose), secret_(secret), limit_(limit) {}

  // Takes in those who wait at the listener.
  void accept(int listener);
  // Hears all of them. `admit` gets the channel and the first record of each that has sent it, and
  // returns whether the record is one of this job's.
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
