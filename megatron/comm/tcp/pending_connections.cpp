#include "megatron/comm/tcp/pending_connections.h"

#include <fmt/format.h>

#include "megatron/core/log.h"

namespace megatron::comm::tcp {
namespace {

constexpr auto kIdentifyTimeout = std::chrono::seconds(5);  // for a connection to identify itself

}  // namespace

void PendingConnections::accept(int listener) {
  for (Socket socket = accept_at(listener); socket.is_open(); socket = accept_at(listener)) {
    std::string address = peer_if_there(socket.get()).str();
    connections_.push_back({Channel(std::move(socket), Channel::End::kListener, purpose_, secret_),
                            std::move(address), Clock::now()});
    if (connections_.size() > limit_) connections_.pop_front();
  }
}

void PendingConnections::advance(
    const std::function<bool(Channel channel, const std::string& record)>& admit) {
  const Clock::time_point now = Clock::now();
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    connection->channel.advance();
    if (const std::optional<std::string> record = connection->channel.next()) {
      if (!admit(std::move(connection->channel), *record)) {
        warn_once(*connection, "its first record is not of this job");
      }
    } else if (connection->channel.state() == Channel::State::kGone) {
      if (connection->channel.is_stranger()) warn_once(*connection, connection->channel.problem());
    } else if (now - connection->since > kIdentifyTimeout) {
      warn_once(*connection, "it has sent nothing for 5 s");
    } else {
      ++connection;
      continue;
    }
    connection = connections_.erase(connection);
  }
}

void PendingConnections::add_to(std::vector<pollfd>& requests) const {
  for (const Connection& connection : connections_) {
    requests.push_back({connection.channel.descriptor(), connection.channel.events(), 0});
  }
}

void PendingConnections::warn_once(const Connection& connection, const std::string& problem) {
  if (std::exchange(has_warned_, true)) return;
  warn(fmt::format("a connection from {} was dropped: {}; further ones are dropped silently",
                   connection.address, problem));
}

}  // namespace megatron::comm::tcp
