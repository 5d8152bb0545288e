#include "megatron/comm/tcp/tcp_wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/comm/tcp/pending_connections.h"
#include "megatron/comm/tcp/record.h"
#include "megatron/comm/tcp/rendezvous.h"
#include "megatron/comm/tcp/sockets.h"
#include "megatron/core/error.h"
#include "megatron/core/host_name.h"

namespace megatron::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxNews = size_t{1} << 16;
constexpr size_t kMaxReports = 64;  // unread reports of work
constexpr auto kForNews = std::chrono::seconds(1);
constexpr auto kForReason = std::chrono::seconds(1);  // for rank 0 to report why a peer was lost
constexpr auto kForCall = std::chrono::seconds(10);   // to connect to a peer
constexpr auto kBetweenCalls = std::chrono::milliseconds(20);
constexpr auto kTcpSpinTime = std::chrono::microseconds(50);
constexpr int kRestMs = 20;
constexpr size_t kMinConnectionSlots = 64;
constexpr rlim_t kOtherFiles = 256;

// The kinds of report records.
enum class ReportKind : uint64_t { kFailure = 1, kWork = 2, kFarewell = 3, kStacks = 4 };

// A message to one peer: header, then body.
struct Outgoing {
  Header header;
  const std::byte* body = nullptr;
  std::vector<std::byte> kept;  // a copy of the body, if its owner has gone
  int64_t num_sent = 0;         // bytes of header and body

  int64_t bytes() const { return static_cast<int64_t>(sizeof(Header)) + header.bytes; }
  bool is_done() const { return num_sent == bytes(); }
};

// A process's listening address.
struct ListenAddress {
  std::string host;
  int port = 0;
};

class TcpWire final : public Wire {
 public:
  TcpWire(const LaunchEnvironment& place, const Secret& secret, std::chrono::milliseconds timeout);
  ~TcpWire() override { ::close(alarm_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) override;
  std::optional<Header> next(int from) override;
  void begin_body(int from, void* to, int64_t bytes) override;
  bool is_body_done(int from) override;
  void tell_failure(const std::string& message) override;
  std::optional<Report> failure() override;
  void tell_work(const std::string& what) override { tell(ReportKind::kWork, rank_, what, rank_); }
  std::optional<Report> work() override;
  void ask_for_stacks() override { tell(ReportKind::kStacks, rank_, {}, rank_); }
  bool are_stacks_wanted() override { return std::exchange(are_stacks_wanted_, false); }
  void wait_briefly(std::unique_lock<std::mutex>& lock, Clock::duration idle) override;
  void progress() override;
  bool is_busy() const override { return !calling_.empty() || !sending_.empty(); }
  void wait_for_progress(std::chrono::milliseconds time) override;
  void wake() override;
  void close() override;

  // Writes as much as the connection accepts.
  void write(int peer);

 private:
  enum class Link { kNone, kCalling, kOpen, kGone };
  struct Peer {
    Link link = Link::kNone;
    std::optional<Channel> call;     // while this rank connects to it
    Clock::time_point next_call{};   // earliest time of the next call
    Clock::time_point first_call{};  // start of the first call of an unsuccessful series
    Socket socket;
    std::deque<std::shared_ptr<Outgoing>> out;
    Header header;  // of the incoming message, as far as received
    int64_t num_header_bytes = 0;
    std::byte* body = nullptr;
    int64_t num_body_bytes = 0;  // still to receive
    bool is_awaited = false;     // read from since the last rest
  };
  static constexpr int64_t kHeaderBytes = sizeof(Header);

  // The connection to a peer; starts one if there is none.
  Peer& linked(int peer);
  void call(int rank, Peer& peer);
  void advance_call(int rank, Peer& peer);
  void call_failed(int rank, Peer& peer, std::string problem);
  bool admit(Channel channel, const std::string& record);
  // Reads at most `bytes`, without waiting; returns the number of bytes read.
  int64_t read(int from, void* to, int64_t bytes);
  // Handles a lost connection.
  void lose(int rank, const std::string& reason);
  // Sends reports to rank 0, or from rank 0 to all others except one.
  void tell(ReportKind kind, int about, const std::string& text, int except);
  void hear(int from, Channel& channel);
  void hear_all();
  void write_news();
  ListenAddress listen_address_of(int peer) const;

  const int rank_;
  const int size_;
  const Secret secret_;
  std::vector<Member> members_;
  std::string address_of_0_;
  std::vector<Socket> listeners_;
  PendingConnections guests_;
  std::map<int64_t, Channel> reports_;  // rank 0: to all others; others: to rank 0
  std::set<int64_t> left_;              // ended normally
  std::unordered_map<int, Peer> peers_;
  std::set<int> calling_;
  std::set<int> sending_;  // peers with pending output
  std::optional<Report> failure_;
  std::optional<Report> lost_;  // a lost peer whose reason is not known yet
  Clock::time_point lost_at_{};
  std::deque<Report> work_;
  bool are_stacks_wanted_ = false;
  int alarm_ = -1;
  std::vector<pollfd> watched_;  // descriptors of wait_for_progress()
  std::mutex watched_mutex_;
};

class TcpSending final : public Sending {
 public:
  TcpSending(TcpWire& wire, int peer, std::shared_ptr<Outgoing> message)
      : wire_(wire), peer_(peer), message_(std::move(message)) {}
  ~TcpSending() override {
    if (message_->is_done()) return;
    // Copies the unsent rest, because the caller may free the body now.
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

// Raises the limit of open files as far as allowed; rank 0 has a connection to all others.
void expect_enough_files(const LaunchEnvironment& place) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t needed = static_cast<rlim_t>(place.rank == 0 ? place.size : 0) + kOtherFiles;
  if (limit.rlim_max >= needed) return;
  throw CommError(fmt::format(
      "rank {} of {} ranks needs {} open files, the limit is {}; raise it (ulimit -Hn), or start "
      "the ranks by mpirun",
      place.rank, place.size, needed, limit.rlim_max));
}

// The listening address of this rank: the address by which it reaches rank 0. If that is loopback
// and the job may have other hosts, all addresses.
Address listen_address(const LaunchEnvironment& place) {
  Address address = address_towards(resolve(place.master_address, place.master_port));
  if (address.is_loopback() && !is_local_name(place.master_address)) return any_address(0);
  address.port() = 0;
  return address;
}

TcpWire::TcpWire(const LaunchEnvironment& place, const Secret& secret,
                 std::chrono::milliseconds timeout)
    : rank_(place.rank),
      size_(place.size),
      secret_(secret),
      guests_(Purpose::kData, secret, static_cast<size_t>(place.size) + kMinConnectionSlots) {
  expect_enough_files(place);
  Member own{.number = place.rank,
             .name = fmt::format("rank {} on {}", place.rank, host_name()),
             .settings = {},
             .card = {},
             .address = {}};
  if (rank_ != 0) {
    listeners_.push_back(listen_at(listen_address(place), std::min(size_ + 64, 4096)));
    own.card = std::to_string(ntohs(own_address(listeners_[0].get()).port()));
  } else {
    own.card = std::to_string(place.master_port);
  }
  Rendezvous rendezvous =
      join_rendezvous({.purpose = Purpose::kRanks,
                       .address = place.master_address,
                       .port = place.master_port,
                       .count = place.size,
                       .noun = "rank",
                       .remedy = "give each process its own RANK (each host its own "
                                 "--node-rank)"},
                      own, secret_, timeout);
  members_ = std::move(rendezvous.members);
  reports_ = std::move(rendezvous.channels);
  if (rank_ == 0) listeners_ = std::move(rendezvous.listeners);
  if (rank_ != 0) address_of_0_ = peer_address(reports_.at(0).descriptor()).host();
  alarm_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  progress();
}

ListenAddress TcpWire::listen_address_of(int peer) const {
  const Member& member = members_[static_cast<size_t>(peer)];
  const auto port = static_cast<int>(std::strtol(member.card.c_str(), nullptr, 10));
  if (peer == 0) return {address_of_0_, port};
  const bool is_beside_0 = numeric_address(member.address, 0).is_loopback();
  // A rank on rank 0's host has the address by which this rank reaches rank 0.
  return {is_beside_0 && rank_ != 0 ? address_of_0_ : member.address, port};
}

TcpWire::Peer& TcpWire::linked(int rank) {
  Peer& peer = peers_[rank];
  if (peer.link == Link::kNone) {
    if (peer.first_call == Clock::time_point{}) peer.first_call = Clock::now();
    call(rank, peer);
  }
  return peer;
}

void TcpWire::call(int rank, Peer& peer) {
  if (Clock::now() < peer.next_call) return;
  const ListenAddress address = listen_address_of(rank);
  Socket socket = begin_connection(numeric_address(address.host, address.port));
  if (!socket.is_open()) return call_failed(rank, peer, std::strerror(errno));
  peer.call.emplace(std::move(socket), Channel::End::kCaller, Purpose::kData, secret_);
  RecordWriter hello;
  hello.number(static_cast<uint64_t>(rank_));
  peer.call->send(hello.bytes());
  peer.link = Link::kCalling;
  calling_.insert(rank);
  advance_call(rank, peer);
}

void TcpWire::advance_call(int rank, Peer& peer) {
  peer.call->advance();
  if (peer.call->state() == Channel::State::kOpen && peer.call->next()) {
    peer.socket = peer.call->release();
    peer.call.reset();
    peer.link = Link::kOpen;
    calling_.erase(rank);
    keep_alive(peer.socket.get());
    write(rank);
  } else if (peer.call->state() == Channel::State::kGone) {
    call_failed(rank, peer, peer.call->problem());
  }
}

// The other side may have connected at the same time: one of the two connections stays (admit()).
void TcpWire::call_failed(int rank, Peer& peer, std::string problem) {
  peer.call.reset();
  peer.link = Link::kNone;
  calling_.erase(rank);
  const Clock::time_point now = Clock::now();
  peer.next_call = now + kBetweenCalls;
  if (now - peer.first_call > kForCall) lose(rank, problem);
}

bool TcpWire::admit(Channel channel, const std::string& record) {
  RecordReader hello(record);
  const uint64_t number = hello.number();
  if (!hello.is_good() || !hello.is_at_end() || number >= static_cast<uint64_t>(size_) ||
      number == static_cast<uint64_t>(rank_)) {
    return false;
  }
  const auto rank = static_cast<int>(number);
  Peer& peer = peers_[rank];
  // If both connect at once, the connection of the lower rank stays.
  const bool has_better = peer.link == Link::kCalling && rank_ < rank;
  if (has_better || peer.link == Link::kOpen || peer.link == Link::kGone) return true;
  peer.call.reset();
  peer.link = Link::kNone;
  calling_.erase(rank);
  channel.send("welcome");
  channel.flush();  // reads nothing, because messages come next
  if (channel.state() != Channel::State::kOpen || channel.has_output()) return true;
  peer.socket = channel.release();
  peer.link = Link::kOpen;
  keep_alive(peer.socket.get());
  write(rank);
  return true;
}

std::unique_ptr<Sending> TcpWire::send(int peer, const Header& header, const void* body) {
  auto message = std::make_shared<Outgoing>();
  message->header = header;
  message->body = static_cast<const std::byte*>(body);
  Peer& to = linked(peer);
  if (to.link != Link::kGone) to.out.push_back(message);
  write(peer);
  return std::make_unique<TcpSending>(*this, peer, std::move(message));
}

void TcpWire::write(int rank) {
  Peer& peer = linked(rank);
  std::deque<std::shared_ptr<Outgoing>>& out = peer.out;
  while (!out.empty() && peer.link == Link::kOpen) {
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
    const ssize_t count = ::sendmsg(peer.socket.get(), &request, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) break;
      return lose(rank, std::strerror(errno));
    }
    message.num_sent += count;
    if (!message.is_done()) break;
    out.pop_front();
  }
  if (out.empty()) {
    sending_.erase(rank);
  } else {
    sending_.insert(rank);
  }
}

void TcpWire::lose(int rank, const std::string& reason) {
  Peer& peer = peers_[rank];
  peer.link = Link::kGone;
  peer.out.clear();
  sending_.erase(rank);
  if (lost_) return;
  lost_ = Report{rank, fmt::format("its connection is gone: {}", reason)};
  lost_at_ = Clock::now();
}

int64_t TcpWire::read(int from, void* to, int64_t bytes) {
  Peer& peer = linked(from);
  peer.is_awaited = true;
  if (bytes == 0 || peer.link != Link::kOpen) return 0;
  const ssize_t count = ::recv(peer.socket.get(), to, static_cast<size_t>(bytes), 0);
  if (count > 0) return count;
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  lose(from, count < 0 ? std::strerror(errno) : "it was closed");
  return 0;
}

std::optional<Header> TcpWire::next(int from) {
  Peer& peer = peers_[from];
  auto* const header = reinterpret_cast<std::byte*>(&peer.header);
  peer.num_header_bytes +=
      read(from, header + peer.num_header_bytes, kHeaderBytes - peer.num_header_bytes);
  if (peer.num_header_bytes < kHeaderBytes) return {};
  peer.num_header_bytes = 0;
  return peer.header;
}

void TcpWire::begin_body(int from, void* to, int64_t bytes) {
  peers_[from].body = static_cast<std::byte*>(to);
  peers_[from].num_body_bytes = bytes;
}

bool TcpWire::is_body_done(int from) {
  Peer& peer = peers_[from];
  const int64_t count = read(from, peer.body, peer.num_body_bytes);
  peer.body += count;
  peer.num_body_bytes -= count;
  return peer.num_body_bytes == 0;
}

std::optional<Wire::Report> TcpWire::failure() {
  if (failure_) return failure_;
  if (lost_ && Clock::now() - lost_at_ > kForReason) failure_ = lost_;
  return failure_;
}

std::optional<Wire::Report> TcpWire::work() {
  if (work_.empty()) return {};
  Report reports = std::move(work_.front());
  work_.pop_front();
  return reports;
}

void TcpWire::tell(ReportKind kind, int about, const std::string& text, int except) {
  RecordWriter record;
  record.number(static_cast<uint64_t>(kind));
  record.number(static_cast<uint64_t>(about));
  record.text(std::string_view(text).substr(0, kMaxNews));
  for (auto& [rank, channel] : reports_) {
    // Skips reports of work to a rank that does not read them.
    const bool is_deaf = channel.state() == Channel::State::kGone ||
                         (kind == ReportKind::kWork && channel.has_output());
    if (rank == except || is_deaf) continue;
    channel.send(record.bytes());
    channel.flush();
  }
}

void TcpWire::hear(int from, Channel& channel) {
  if (channel.state() == Channel::State::kGone) return;
  channel.advance();
  while (const std::optional<std::string> record = channel.next()) {
    RecordReader reader(*record);
    const auto kind = static_cast<ReportKind>(reader.number());
    const uint64_t about = reader.number();
    const std::string text(reader.text().substr(0, kMaxNews));
    const bool is_of_job =
        rank_ == 0 ? about == static_cast<uint64_t>(from) : about < static_cast<uint64_t>(size_);
    if (!reader.is_good() || !is_of_job) {
      if (!failure_) failure_ = Report{from, "it sent invalid reports"};
      return;
    }
    const auto rank = static_cast<int>(about);
    if (kind == ReportKind::kFarewell) left_.insert(from);
    if (kind == ReportKind::kFailure && !failure_) failure_ = Report{rank, text};
    if (kind == ReportKind::kStacks) are_stacks_wanted_ = true;
    if (kind == ReportKind::kWork && work_.size() < kMaxReports) work_.push_back({rank, text});
    if (rank_ == 0 && kind != ReportKind::kFarewell) tell(kind, rank, text, from);
    channel.advance();
  }
  if (channel.state() != Channel::State::kGone || left_.contains(from) || failure_) return;
  failure_ = Report{from, fmt::format("its connection is gone: {}", channel.problem())};
  if (rank_ == 0) tell(ReportKind::kFailure, from, failure_->message, from);
}

// Reads from all that have sent reports.
void TcpWire::hear_all() {
  std::vector<pollfd> requests;
  std::vector<int64_t> ranks;
  for (auto& [rank, channel] : reports_) {
    if (channel.has_record()) hear(static_cast<int>(rank), channel);
    if (channel.state() == Channel::State::kGone) continue;
    requests.push_back({channel.descriptor(), channel.events(), 0});
    ranks.push_back(rank);
  }
  if (::poll(requests.data(), requests.size(), 0) <= 0) return;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].revents != 0) hear(static_cast<int>(ranks[i]), reports_.at(ranks[i]));
  }
}

void TcpWire::progress() {
  hear_all();
  for (const Socket& listener : listeners_) guests_.accept(listener.get());
  guests_.advance([this](Channel channel, const std::string& record) {
    return admit(std::move(channel), record);
  });
  for (const int rank : std::set<int>(calling_)) advance_call(rank, peers_[rank]);
  for (const int rank : std::set<int>(sending_)) write(rank);

  std::vector<pollfd> requests = {{alarm_, POLLIN, 0}};
  for (const Socket& listener : listeners_) requests.push_back({listener.get(), POLLIN, 0});
  for (const auto& [rank, channel] : reports_) {
    if (channel.state() == Channel::State::kGone) continue;
    requests.push_back({channel.descriptor(), channel.events(), 0});
  }
  guests_.add_to(requests);
  for (const int rank : calling_) {
    const Channel& channel = *peers_[rank].call;
    requests.push_back({channel.descriptor(), channel.events(), 0});
  }
  for (const int rank : sending_) {
    if (peers_[rank].link == Link::kOpen) {
      requests.push_back({peers_[rank].socket.get(), POLLOUT, 0});
    }
  }
  const std::lock_guard lock(watched_mutex_);
  watched_ = std::move(requests);
}

void TcpWire::wait_for_progress(std::chrono::milliseconds time) {
  std::vector<pollfd> requests;
  {
    const std::lock_guard lock(watched_mutex_);
    requests = watched_;
  }
  ::poll(requests.data(), requests.size(), static_cast<int>(time.count()));
  uint64_t count = 0;
  static_cast<void>(::read(alarm_, &count, sizeof(count)));
}

void TcpWire::wake() {
  const uint64_t one = 1;
  static_cast<void>(::write(alarm_, &one, sizeof(one)));
}

void TcpWire::wait_briefly(std::unique_lock<std::mutex>& lock, Clock::duration idle) {
  if (idle < kTcpSpinTime) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    return;
  }
  std::vector<pollfd> requests;
  int wait_ms = kRestMs;
  for (auto& [rank, peer] : peers_) {
    if (peer.is_awaited && peer.link == Link::kOpen) {
      requests.push_back({peer.socket.get(), POLLIN, 0});
    } else if (peer.is_awaited && peer.link == Link::kNone) {
      wait_ms = 1;  // called again soon
    }
    peer.is_awaited = false;
  }
  const size_t num_awaited = requests.size();
  {
    const std::lock_guard watched_lock(watched_mutex_);
    requests.insert(requests.end(), watched_.begin() + 1, watched_.end());
  }
  for (const int rank : calling_) {
    const Channel& channel = *peers_[rank].call;
    requests.push_back({channel.descriptor(), channel.events(), 0});
  }
  for (const int rank : sending_) {
    if (peers_[rank].link != Link::kOpen) continue;
    requests.push_back({peers_[rank].socket.get(), POLLOUT, 0});
  }
  lock.unlock();
  ::poll(requests.data(), requests.size(), wait_ms);
  lock.lock();
  const bool is_to_tend =
      std::any_of(requests.begin() + static_cast<int64_t>(num_awaited), requests.end(),
                  [](const pollfd& request) { return request.revents != 0; });
  if (is_to_tend || is_busy()) progress();
}

void TcpWire::write_news() {
  const Clock::time_point deadline = Clock::now() + kForNews;
  for (bool is_left = true; is_left && Clock::now() < deadline;) {
    is_left = false;
    for (auto& [rank, channel] : reports_) {
      channel.flush();
      is_left |= channel.state() == Channel::State::kOpen && channel.has_output();
    }
    for (const int rank : std::set<int>(sending_)) write(rank);
    is_left |= !sending_.empty();
    if (is_left) std::this_thread::yield();
  }
}

void TcpWire::tell_failure(const std::string& message) {
  tell(ReportKind::kFailure, rank_, message, rank_);
  write_news();
}

void TcpWire::close() {
  tell(ReportKind::kFarewell, rank_, "", rank_);
  write_news();
}

}  // namespace

std::unique_ptr<Wire> make_tcp_wire(const LaunchEnvironment& place, const Secret& secret,
                                    std::chrono::milliseconds timeout) {
  return std::make_unique<TcpWire>(place, secret, timeout);
}

}  // namespace megatron::comm::tcp
