#include "megatron/comm/tcp/tcp_wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/comm/tcp/rendezvous.h"
#include "megatron/comm/tcp/sockets.h"

namespace megatron::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

// Groups that are none: what is said of the process itself.
constexpr uint64_t kFailureGroup = ~uint64_t{0};
constexpr uint64_t kFarewellGroup = ~uint64_t{1};
constexpr int64_t kMaxFailureBytes = 1 << 16;
// At peers that nobody waits for: a call of the system for each of them.
constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
constexpr int kPeersALook = 64;
constexpr auto kFarewell = std::chrono::seconds(1);
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kRestMs = 5;

// Of a message to one peer: header, then body.
struct Outgoing {
  Header header;
  const std::byte* body = nullptr;
  std::vector<std::byte> kept;  // the body, once nobody else keeps it
  int64_t num_sent = 0;         // bytes, of both

  int64_t bytes() const { return static_cast<int64_t>(sizeof(Header)) + header.bytes; }
  bool is_done() const { return num_sent == bytes(); }
};

class TcpWire final : public Wire {
 public:
  TcpWire(const LaunchEnvironment& place, std::chrono::milliseconds timeout);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) override;
  std::optional<Header> next(int from) override;
  void begin_body(int from, void* to, int64_t bytes) override;
  bool is_body_done(int from) override;
  void tell_failure(const std::string& message) override;
  std::optional<Failure> failure() override;
  void rest(std::chrono::steady_clock::duration idle) override;
  void close() override;

  // Writes what the connection takes.
  void write(int peer);

 private:
  struct Peer {
    Socket socket;
    std::deque<std::shared_ptr<Outgoing>> out;
    Header header;  // of the message that comes, as far as it is there
    int64_t num_header_bytes = 0;
    std::byte* body = nullptr;
    int64_t num_body_bytes = 0;  // still to come
    bool is_awaited = false;     // somebody asked for what comes since the last rest
    bool has_left = false;       // in good order, or the connection is gone
  };
  static constexpr int64_t kHeaderBytes = sizeof(Header);

  Peer& at(int peer) { return peers_[static_cast<size_t>(peer)]; }
  // Reads at most `bytes`; what there is.
  int64_t read(int from, void* to, int64_t bytes);
  // True when a header is there; what concerns the process is dealt with here.
  bool read_header(int from);
  // The connection is gone.
  void lose(int peer, const char* reason);
  // Waits, a moment at most, until everything is written.
  void write_all();
  void say_to_all(uint64_t group, const std::string& text);

  const int rank_;
  std::vector<Peer> peers_;
  std::optional<Failure> failure_;
  Clock::time_point last_look_;
};

class TcpSending final : public Sending {
 public:
  TcpSending(TcpWire& wire, int peer, std::shared_ptr<Outgoing> message)
      : wire_(wire), peer_(peer), message_(std::move(message)) {}
  ~TcpSending() override {
    if (message_->is_done()) return;
    // The rest must still follow what was sent, and the body may go now.
    message_->kept.assign(message_->body, message_->body + message_->header.bytes);
    message_->body = message_->kept.data();
  }
  bool is_done() override {
    if (!message_->is_done()) wire_.write(peer_);
    return message_->is_done();
  }

 private:
  TcpWire& wire_;
  const int peer_;
  const std::shared_ptr<Outgoing> message_;
};

TcpWire::TcpWire(const LaunchEnvironment& place, std::chrono::milliseconds timeout)
    : rank_(place.rank), peers_(static_cast<size_t>(place.size)) {
  std::vector<Socket> sockets = connect_all(place, timeout);
  for (size_t i = 0; i < peers_.size(); ++i) peers_[i].socket = std::move(sockets[i]);
}

std::unique_ptr<Sending> TcpWire::send(int peer, const Header& header, const void* body) {
  auto message = std::make_shared<Outgoing>();
  message->header = header;
  message->body = static_cast<const std::byte*>(body);
  at(peer).out.push_back(message);
  write(peer);
  return std::make_unique<TcpSending>(*this, peer, std::move(message));
}

void TcpWire::write(int peer) {
  std::deque<std::shared_ptr<Outgoing>>& out = at(peer).out;
  while (!out.empty()) {
    Outgoing& message = *out.front();
    std::array<iovec, 2> parts{};
    size_t num_parts = 0;
    if (message.num_sent < kHeaderBytes) {
      auto* const header = reinterpret_cast<std::byte*>(&message.header);
      parts[num_parts++] = {header + message.num_sent,
                            static_cast<size_t>(kHeaderBytes - message.num_sent)};
    }
    const int64_t body_sent = std::max<int64_t>(0, message.num_sent - kHeaderBytes);
    if (body_sent < message.header.bytes) {
      parts[num_parts++] = {const_cast<std::byte*>(message.body) + body_sent,
                            static_cast<size_t>(message.header.bytes - body_sent)};
    }
    msghdr request{};
    request.msg_iov = parts.data();
    request.msg_iovlen = num_parts;
    const ssize_t count = ::sendmsg(at(peer).socket.get(), &request, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      const std::string reason = std::strerror(errno);
      read_header(peer);  // it may have said why
      if (!at(peer).has_left) return lose(peer, reason.c_str());
      return out.clear();
    }
    message.num_sent += count;
    if (!message.is_done()) return;
    out.pop_front();
  }
}

void TcpWire::lose(int peer, const char* reason) {
  at(peer).has_left = true;
  at(peer).out.clear();
  if (!failure_) failure_ = {peer, fmt::format("its connection is gone: {}", reason)};
}

int64_t TcpWire::read(int from, void* to, int64_t bytes) {
  if (bytes == 0 || at(from).has_left) return 0;
  const ssize_t count = ::recv(at(from).socket.get(), to, static_cast<size_t>(bytes), 0);
  if (count > 0) return count;
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  lose(from, count < 0 ? std::strerror(errno) : "it was closed");
  return 0;
}

bool TcpWire::read_header(int from) {
  Peer& peer = at(from);
  if (peer.has_left || peer.num_body_bytes > 0) return false;
  if (peer.num_header_bytes == kHeaderBytes) return true;
  auto* const header = reinterpret_cast<std::byte*>(&peer.header);
  peer.num_header_bytes +=
      read(from, header + peer.num_header_bytes, kHeaderBytes - peer.num_header_bytes);
  if (peer.num_header_bytes < kHeaderBytes) return false;
  if (peer.header.group == kFarewellGroup) {
    peer.has_left = true;
    return false;
  }
  if (peer.header.group != kFailureGroup) return true;
  std::string text(static_cast<size_t>(std::clamp<int64_t>(peer.header.bytes, 0, kMaxFailureBytes)),
                   ' ');
  const Clock::time_point deadline = Clock::now() + kFarewell;
  int64_t got = 0;
  while (got < static_cast<int64_t>(text.size()) && Clock::now() < deadline) {
    got += read(from, text.data() + got, static_cast<int64_t>(text.size()) - got);
  }
  peer.has_left = true;
  if (!failure_) failure_ = {from, text};
  return false;
}

std::optional<Header> TcpWire::next(int from) {
  at(from).is_awaited = true;
  if (at(from).has_left && !failure_) failure_ = {from, "its program has ended"};
  if (!read_header(from)) return {};
  at(from).num_header_bytes = 0;
  return at(from).header;
}

void TcpWire::begin_body(int from, void* to, int64_t bytes) {
  at(from).body = static_cast<std::byte*>(to);
  at(from).num_body_bytes = bytes;
}

bool TcpWire::is_body_done(int from) {
  Peer& peer = at(from);
  peer.is_awaited = true;
  const int64_t count = read(from, peer.body, peer.num_body_bytes);
  peer.body += count;
  peer.num_body_bytes -= count;
  return peer.num_body_bytes == 0;
}

std::optional<Wire::Failure> TcpWire::failure() {
  const Clock::time_point now = Clock::now();
  if (failure_ || now - last_look_ < kBetweenLooks * (1 + size() / kPeersALook)) return failure_;
  last_look_ = now;
  for (int peer = 0; peer < size() && !failure_; ++peer) {
    if (peer != rank_) read_header(peer);
  }
  return failure_;
}

void TcpWire::rest(std::chrono::steady_clock::duration idle) {
  if (idle < kSpinTime) return std::this_thread::yield();
  std::vector<pollfd> requests;
  for (Peer& peer : peers_) {
    const int events = (peer.is_awaited ? POLLIN : 0) | (peer.out.empty() ? 0 : POLLOUT);
    peer.is_awaited = false;
    if (events == 0 || peer.has_left) continue;
    requests.push_back({peer.socket.get(), static_cast<int16_t>(events), 0});
  }
  ::poll(requests.data(), requests.size(), kRestMs);
}

void TcpWire::write_all() {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  for (int peer = 0; peer < size(); ++peer) {
    while (!at(peer).out.empty() && Clock::now() < deadline) {
      write(peer);
      std::this_thread::yield();
    }
  }
}

void TcpWire::say_to_all(uint64_t group, const std::string& text) {
  const Header header{group, {}, std::min(static_cast<int64_t>(text.size()), kMaxFailureBytes)};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) send(peer, header, text.data());
  }
  write_all();
}

void TcpWire::tell_failure(const std::string& message) { say_to_all(kFailureGroup, message); }
void TcpWire::close() { say_to_all(kFarewellGroup, ""); }

}  // namespace

std::unique_ptr<Wire> make_tcp_wire(const LaunchEnvironment& place,
                                    std::chrono::milliseconds timeout) {
  return std::make_unique<TcpWire>(place, timeout);
}

}  // namespace megatron::comm::tcp
