#include "megatron/comm/tcp/pending_connections.h"

#include <fmt/format.h>

#include "megatron/core/log.h"

namespace megatron::comm::tcp {
namespace {

constexpr auto kTime = std::chrono::seconds(5);  // for a guest to identify itself

}  // namespace

void PendingConnections::accept(int listener) {
  for (Socket socket = accept_at(listener); socket.is_open(); socket = accept_at(listener)) {
    std::string address = peer_if_there(socket.get()).str();
    guests_.push_back({Channel(std::move(socket), Channel::End::kListener, purpose_, secret_),
                       std::move(address), Clock::now()});
    if (guests_.size() > limit_) guests_.pop_front();
  }
}

void PendingConnections::advance(
    const std::function<bool(Channel channel, const std::string& record)>& admit) {
  const Clock::time_point now = Clock::now();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    guest->channel.advance();
    if (const std::optional<std::string> record = guest->channel.next()) {
      if (!admit(std::move(guest->channel), *record)) {
        warn_once(*guest, "its first record is not of this job");
      }
    } else if (guest->channel.state() == Channel::State::kGone) {
      if (guest->channel.is_stranger()) warn_once(*guest, guest->channel.problem());
    } else if (now - guest->since > kTime) {
      warn_once(*guest, "it has sent nothing for 5 s");
    } else {
      ++guest;
      continue;
    }
    guest = guests_.erase(guest);
  }
}

void PendingConnections::add_to(std::vector<pollfd>& requests) const {
  for (const Guest& guest : guests_) {
    requests.push_back({guest.channel.descriptor(), guest.channel.events(), 0});
  }
}

void PendingConnections::warn_once(const Guest& guest, const std::string& problem) {
  if (std::exchange(has_warned_, true)) return;
  warn(fmt::format("a connection from {} was dropped: {}; further ones are dropped silently",
                   guest.address, problem));
}

}  // namespace megatron::comm::tcp
