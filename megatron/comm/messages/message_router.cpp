#include "megatron/comm/messages/message_router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/stacks.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Memory for an unexpected message grows with the bytes that arrive: a header alone allocates none.
constexpr int64_t kUnexpectedStep = int64_t{4} << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // of one message
constexpr auto kHeartbeat = std::chrono::milliseconds(1000);
constexpr auto kBusyPoll = std::chrono::milliseconds(2);

bool is_message(const Call& call) {
  return call.operation == Operation::kSend || call.operation == Operation::kRecv;
}

}  // namespace

bool is_valid(const Header& header) {
  const Call& call = header.call;
  const auto is_below = [](auto value, auto last) {
    return static_cast<int>(value) >= 0 && static_cast<int>(value) <= static_cast<int>(last);
  };
  if (!is_below(call.operation, Operation::kConnect) || !is_below(call.dtype, DType::kBool) ||
      !is_below(call.reduce, Reduce::kMax)) {
    return false;
  }
  if (call.count < 0 || call.count > kMaxBytes || header.bytes < 0 || header.bytes > kMaxBytes) {
    return false;
  }
  return !is_message(call) || header.bytes == call.bytes();
}

struct MessageRouter::Unexpected {  // a message without a matching receive yet
  Header header;
  std::vector<std::byte> body;
};

struct MessageRouter::Awaited {
  Message message;
  int peer = 0;  // its rank in the world
  bool is_done = false;
};

enum class MessageRouter::Phase { kHeader, kBody };

struct MessageRouter::Peer {
  Phase phase = Phase::kHeader;
  Awaited* to = nullptr;  // receiver of the body in flight; null: `incoming`
  Unexpected incoming;
  // By group, and true for messages or false for collectives.
  std::map<std::pair<uint64_t, bool>, std::deque<Unexpected>> unexpected;
};

struct MessageRouter::Posted {
  std::vector<std::byte> body;
  std::unique_ptr<Sending> sending;
};

struct MessageRouter::Mail {
  std::unordered_map<int, Peer> peers;
  std::deque<Posted> posted;
};

class MessageRouter::WaitLimit {
 public:
  explicit WaitLimit(MessageRouter& router) : router_(&router) {}

  // Call after progress.
  void reset() { begin_ = Clock::now(); }
  // Call without progress: checks for reports and yields. False if time is up.
  bool wait(Lock& lock) {
    MessageRouter& router = *router_;
    const Clock::time_point now = Clock::now();
    router.read_reports();
    if (!router.has_time_left(begin_, now)) return false;
    if (!has_warned_ && now - begin_ > router.context_->timeout.load()) {
      has_warned_ = true;
      router.warn_of_work();
    }
    router.wire_->wait_briefly(lock, now - begin_);
    return true;
  }

 private:
  MessageRouter* router_;
  Clock::time_point begin_ = Clock::now();
  bool has_warned_ = false;
};

void MessageRouter::read_reports() {
  const auto name_of = [&](int rank) {
    const std::vector<std::string>& hosts = context_->hosts;
    return fmt::format("rank {} of the world{}", rank,
                       hosts.empty() ? "" : " on " + hosts[static_cast<size_t>(rank)]);
  };
  if (const std::optional<Wire::Report> failure = wire_->failure()) {
    failure_ = fmt::format("{} failed: {}", name_of(failure->rank), failure->message);
  }
  if (wire_->are_stacks_wanted()) print_own_stacks();
  while (const std::optional<Wire::Report> work = wire_->work()) {
    work_heard_ = Clock::now();
    last_work_ = fmt::format("{} is {}", name_of(work->rank), work->message);
  }
}

void MessageRouter::print_own_stacks() {
  if (std::exchange(has_printed_stacks_, true)) return;
  const LogScope aloud(true);
  warn(fmt::format("the calls of all threads of rank {}, innermost first:\n{}", rank_,
                   stacks_of_all_threads()));
}

void MessageRouter::print_all_stacks() {
  const std::lock_guard lock(mutex_);
  wire_->ask_for_stacks();
  print_own_stacks();
}

void MessageRouter::check_for_failures() {
  const std::lock_guard lock(mutex_);
  read_reports();
}

bool MessageRouter::has_time_left(Clock::time_point begin, Clock::time_point now) const {
  return now - std::max(begin, work_heard_) <= context_->timeout.load();
}

bool MessageRouter::may_keep_waiting(Clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  waited_ = Clock::now();
  read_reports();
  if (!has_time_left(begin, waited_)) return false;
  if (waited_ - begin > context_->timeout.load() && std::exchange(warned_, begin) != begin) {
    warn_of_work();
  }
  return true;
}

void MessageRouter::warn_of_work() const {
  warn(fmt::format("waiting beyond the time-out of {} s: {}",
                   static_cast<double>(context_->timeout.load().count()) / 1000, last_work_));
}

// A sending whose destructor takes the router's lock.
class MessageRouter::Started final : public Sending {
 public:
  Started(MessageRouter& router, std::unique_ptr<Sending> sending)
      : router_(router), sending_(std::move(sending)) {}
  ~Started() override {
    const std::lock_guard lock(router_.mutex_);
    sending_.reset();
  }
  bool is_done() override { return sending_->is_done(); }

 private:
  MessageRouter& router_;
  std::unique_ptr<Sending> sending_;
};

MessageRouter::MessageRouter(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context,
                             ProgressThread thread)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(wire_->size()),
      context_(std::move(context)),
      mail_(std::make_unique<Mail>()) {
  if (thread == ProgressThread::kNone) return;
  try {
    progress_thread_ = std::thread([this] { run_progress_thread(); });
  } catch (const std::system_error& error) {
    throw CommError(
        fmt::format("rank {} cannot start a thread: {}; raise the limit of processes "
                    "(ulimit -u)",
                    rank_, error.what()));
  }
}

MessageRouter::~MessageRouter() { stop_progress_thread(); }

void MessageRouter::stop_progress_thread() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wire_->wake();
  if (progress_thread_.joinable()) progress_thread_.join();
}

void MessageRouter::run_progress_thread() {
  Lock lock(mutex_);
  while (!is_over_) {
    try {
      make_progress();
    } catch (const std::exception& error) {
      // The rank's next call reports the error.
      debug(fmt::format("rank {}: {}", rank_, error.what()));
    }
    const auto timeout = context_->timeout.load();
    const std::chrono::milliseconds pause =
        std::max(std::chrono::milliseconds(1),
                 wire_->is_busy() ? kBusyPoll : std::min(kHeartbeat, timeout / 8));
    lock.unlock();
    wire_->wait_for_progress(pause);
    lock.lock();
  }
}

void MessageRouter::make_progress() {
  wire_->progress();
  if (wire_->are_stacks_wanted()) print_own_stacks();
  if (is_waiting_) return;
  discard_sent();
  const Clock::time_point now = Clock::now();
  const auto interval = std::min(kHeartbeat, context_->timeout.load() / 8);
  if (now - work_reported_ < interval || now - waited_ < interval) return;
  if (const std::optional<std::string> what = context_->activity.what()) {
    work_reported_ = now;
    wire_->tell_work(*what);
  }
}

std::optional<std::string> MessageRouter::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return failure_;
}

void MessageRouter::tell_failure(const std::string& message) {
  stop_progress_thread();
  const std::lock_guard lock(mutex_);
  wire_->tell_failure(message);
}

void MessageRouter::close() {
  stop_progress_thread();
  const std::lock_guard lock(mutex_);
  wire_->close();
}

MessageRouter::Traffic MessageRouter::traffic() const {
  const std::lock_guard lock(mutex_);
  Traffic traffic = traffic_;
  traffic.peers = static_cast<int64_t>(mail_->peers.size());
  return traffic;
}

void MessageRouter::check(const Round& round, const Awaited& awaited, const Header& header) const {
  const Call& theirs = header.call;
  const Call& ours = round.call;
  const bool has_size = header.bytes == awaited.message.bytes;
  if (is_message(ours)) {
    if (has_size && theirs.count == ours.count && theirs.dtype == ours.dtype) return;
    throw CommError(fmt::format("{}: {} expects a message that {} did not send: {}",
                                round.self.name_of(ours), round.self.name_of(round.self.rank()),
                                round.self.name_of(awaited.message.member), theirs.str()));
  }
  if (theirs == ours && has_size) return;
  throw CommError(fmt::format("group {}: members made different calls: {} called {}, {} called {}",
                              round.self.membership().name, round.self.name_of(round.self.rank()),
                              ours.str(), round.self.name_of(awaited.message.member),
                              theirs.str()));
}

void MessageRouter::receive_unexpected(int peer, Peer& from) {
  std::vector<std::byte>& body = from.incoming.body;
  const auto have = static_cast<int64_t>(body.size());
  const int64_t rest = from.incoming.header.bytes - have;
  const int64_t step =
      wire_->takes_parts() ? std::min(rest, std::max(have, kUnexpectedStep)) : rest;
  body.resize(static_cast<size_t>(have + step));
  wire_->begin_body(peer, body.data() + have, step);
}

bool MessageRouter::is_unexpected_done(int peer, Peer& from) {
  while (wire_->is_body_done(peer)) {
    if (static_cast<int64_t>(from.incoming.body.size()) == from.incoming.header.bytes) return true;
    receive_unexpected(peer, from);
  }
  return false;
}

bool MessageRouter::progress(const Round& round, Awaited& awaited) {
  Peer& peer = mail_->peers[awaited.peer];
  std::deque<Unexpected>& unexpected = peer.unexpected[{round.group, is_message(round.call)}];
  if (peer.to == nullptr && !unexpected.empty()) {
    const Unexpected message = std::move(unexpected.front());
    unexpected.pop_front();
    check(round, awaited, message.header);
    if (awaited.message.bytes > 0) {
      std::memcpy(awaited.message.data, message.body.data(), message.body.size());
    }
    return awaited.is_done = true;
  }
  if (peer.phase == Phase::kHeader) {
    const std::optional<Header> header = wire_->next(awaited.peer);
    if (!header) return false;
    if (!is_valid(*header)) {
      throw CommError(fmt::format("rank {} of the world sent an invalid message", awaited.peer));
    }
    peer.phase = Phase::kBody;
    if (header->group == round.group && is_message(header->call) == is_message(round.call)) {
      check(round, awaited, *header);
      peer.to = &awaited;
      wire_->begin_body(awaited.peer, awaited.message.data, header->bytes);
    } else {
      peer.incoming.header = *header;
      receive_unexpected(awaited.peer, peer);
    }
  }
  if (peer.to != nullptr) {
    if (!wire_->is_body_done(awaited.peer)) return false;
    std::exchange(peer.to, nullptr)->is_done = true;
  } else {
    if (!is_unexpected_done(awaited.peer, peer)) return false;
    const Header& header = peer.incoming.header;
    peer.unexpected[{header.group, is_message(header.call)}].push_back(
        std::exchange(peer.incoming, {}));
  }
  peer.phase = Phase::kHeader;
  return true;
}

void MessageRouter::throw_if_released(const Round& round) const {
  if (failure_.empty()) return;
  throw CommError(fmt::format("{}: {} was released because {}", round.self.name_of(round.call),
                              round.self.name_of(round.self.rank()), failure_));
}

void MessageRouter::throw_timeout(const Round& round, std::span<const Awaited> awaited) {
  std::string missing;
  for (const Awaited& one : awaited) {
    if (one.is_done) continue;
    missing += (missing.empty() ? "" : ", ") + round.self.name_of(one.message.member);
  }
  if (missing.empty()) missing = "a member to receive the message";
  round.self.Transport::print_flight_records();
  wire_->ask_for_stacks();
  print_own_stacks();
  throw CommError(fmt::format("{}: {} waited {} s for {}", round.self.name_of(round.call),
                              round.self.name_of(round.self.rank()),
                              static_cast<double>(context_->timeout.load().count()) / 1000,
                              missing));
}

std::unique_ptr<Sending> MessageRouter::begin(const Round& round, const Message& message) {
  const int peer = round.self.membership().world_ranks[static_cast<size_t>(message.member)];
  mail_->peers.try_emplace(peer);
  traffic_.messages += 1;
  traffic_.bytes += message.bytes;
  return wire_->send(peer, {round.group, round.call, message.bytes}, message.data);
}

std::unique_ptr<Sending> MessageRouter::start(const Round& round, const Message& message) {
  const std::lock_guard lock(mutex_);
  throw_if_released(round);
  return std::make_unique<Started>(*this, begin(round, message));
}

void MessageRouter::exchange(const Round& round, std::span<const Message> out,
                             std::span<const Message> in) {
  Lock lock(mutex_);
  throw_if_released(round);
  discard_sent();
  std::deque<std::unique_ptr<Sending>> sendings;
  for (const Message& message : out) sendings.push_back(begin(round, message));
  std::vector<Awaited> awaited;
  awaited.reserve(in.size());
  for (const Message& message : in) {
    awaited.push_back(
        {message, round.self.membership().world_ranks[static_cast<size_t>(message.member)]});
  }
  is_waiting_ = true;
  WaitLimit limit(*this);
  for (;;) {
    bool has_moved = false;
    bool is_done = true;
    for (Awaited& one : awaited) {
      if (!one.is_done) has_moved |= progress(round, one);
      is_done &= one.is_done;
    }
    has_moved |= std::erase_if(sendings, [](const auto& one) { return one->is_done(); }) > 0;
    if (is_done && sendings.empty()) break;
    if (has_moved) {
      limit.reset();
      continue;
    }
    discard_sent();  // also continues sendings
    const bool has_time = limit.wait(lock);
    throw_if_released(round);
    if (!has_time) throw_timeout(round, awaited);
  }
  is_waiting_ = false;
  if (!mail_->posted.empty()) wire_->wake();
}

void MessageRouter::finish(const Round& round, std::deque<std::unique_ptr<Sending>>& sendings,
                           size_t left) {
  std::vector<std::unique_ptr<Sending>> done;  // destroyed without the lock
  Lock lock(mutex_);
  is_waiting_ = true;
  WaitLimit limit(*this);
  while (sendings.size() > left) {
    if (sendings.front()->is_done()) {
      done.push_back(std::move(sendings.front()));
      sendings.pop_front();
      limit.reset();
      continue;
    }
    const bool has_time = limit.wait(lock);
    throw_if_released(round);
    if (!has_time) throw_timeout(round, {});
  }
  is_waiting_ = false;
}

void MessageRouter::post(const Round& round, const Message& message) {
  const std::lock_guard lock(mutex_);
  throw_if_released(round);
  discard_sent();
  Posted& posted = mail_->posted.emplace_back();
  const auto* const data = static_cast<const std::byte*>(message.data);
  posted.body.assign(data, data + message.bytes);
  posted.sending = begin(round, {message.member, posted.body.data(), message.bytes});
  discard_sent();
  if (!mail_->posted.empty()) wire_->wake();
}

void MessageRouter::discard_sent() {
  std::erase_if(mail_->posted, [](const Posted& one) { return one.sending->is_done(); });
}

void MessageRouter::flush() {
  Lock lock(mutex_);
  is_waiting_ = true;
  WaitLimit limit(*this);
  for (discard_sent(); !mail_->posted.empty(); discard_sent()) {
    if (!limit.wait(lock)) {
      throw CommError(fmt::format("{} messages from rank {} of the world were not received",
                                  mail_->posted.size(), rank_));
    }
    if (!failure_.empty()) throw CommError(failure_);
  }
  is_waiting_ = false;
}

}  // namespace megatron::comm
