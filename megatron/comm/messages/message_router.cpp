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

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A letter's memory grows with the bytes that arrive: a header alone allocates none.
constexpr int64_t kLetterStep = int64_t{4} << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // of one message
constexpr auto kLookAtWork = std::chrono::milliseconds(1000);
constexpr auto kWhileBusy = std::chrono::milliseconds(2);

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

struct MessageRouter::Letter {  // a message that arrived early
  Header header;
  std::vector<std::byte> body;
};

struct MessageRouter::Awaited {
  Parcel parcel;
  int peer = 0;  // its rank in the world
  bool is_done = false;
};

enum class MessageRouter::Phase { kHeader, kBody };

struct MessageRouter::Peer {
  Phase phase = Phase::kHeader;
  Awaited* to = nullptr;  // receiver of the body under way; null: a letter
  Letter letter;
  // By group, and whether it is a message or a collective.
  std::map<std::pair<uint64_t, bool>, std::deque<Letter>> early;
};

struct MessageRouter::Posted {
  std::vector<std::byte> body;
  std::unique_ptr<Sending> sending;
};

struct MessageRouter::Mail {
  std::unordered_map<int, Peer> peers;
  std::deque<Posted> posted;
};

class MessageRouter::Patience {
 public:
  explicit Patience(MessageRouter& office) : office_(&office) {}

  // Call after progress.
  void reset() { begin_ = Clock::now(); }
  // Call without progress: checks for news and yields. False if time is up.
  bool wait(Lock& lock) {
    MessageRouter& office = *office_;
    const Clock::time_point now = Clock::now();
    office.hear_news_locked();
    if (!office.may_go_on(begin_, now)) return false;
    if (!has_said_ && now - begin_ > office.context_->timeout.load()) {
      has_said_ = true;
      office.warn_of_work();
    }
    office.wire_->rest(lock, now - begin_);
    return true;
  }

 private:
  MessageRouter* office_;
  Clock::time_point begin_ = Clock::now();
  bool has_said_ = false;
};

void MessageRouter::hear_news_locked() {
  const auto name_of = [&](int rank) {
    const std::vector<std::string>& hosts = context_->hosts;
    return fmt::format("rank {} of the world{}", rank,
                       hosts.empty() ? "" : " on " + hosts[static_cast<size_t>(rank)]);
  };
  if (const std::optional<Wire::News> failure = wire_->failure()) {
    failure_ = fmt::format("{} failed: {}", name_of(failure->rank), failure->message);
  }
  while (const std::optional<Wire::News> work = wire_->work()) {
    heard_work_ = Clock::now();
    last_work_ = fmt::format("{} is {}", name_of(work->rank), work->message);
  }
}

void MessageRouter::hear_news() {
  const std::lock_guard lock(mutex_);
  hear_news_locked();
}

bool MessageRouter::may_go_on(Clock::time_point begin, Clock::time_point now) const {
  return now - std::max(begin, heard_work_) <= context_->timeout.load();
}

bool MessageRouter::may_wait(Clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  waited_ = Clock::now();
  hear_news_locked();
  if (!may_go_on(begin, waited_)) return false;
  if (waited_ - begin > context_->timeout.load() && std::exchange(warned_, begin) != begin) {
    warn_of_work();
  }
  return true;
}

void MessageRouter::warn_of_work() const {
  warn(fmt::format("waiting beyond the time-out of {} s: {}",
                   static_cast<double>(context_->timeout.load().count()) / 1000, last_work_));
}

// A sending that takes the office's lock for its destruction.
class MessageRouter::Started final : public Sending {
 public:
  Started(MessageRouter& office, std::unique_ptr<Sending> sending)
      : office_(office), sending_(std::move(sending)) {}
  ~Started() override {
    const std::lock_guard lock(office_.mutex_);
    sending_.reset();
  }
  bool is_done() override { return sending_->is_done(); }

 private:
  MessageRouter& office_;
  std::unique_ptr<Sending> sending_;
};

MessageRouter::MessageRouter(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context,
                             ProgressThread porter)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(wire_->size()),
      context_(std::move(context)),
      mail_(std::make_unique<Mail>()) {
  if (porter == ProgressThread::kNone) return;
  try {
    porter_ = std::thread([this] { run_porter(); });
  } catch (const std::system_error& error) {
    throw CommError(
        fmt::format("rank {} cannot start a thread: {}; raise the limit of processes "
                    "(ulimit -u)",
                    rank_, error.what()));
  }
}

MessageRouter::~MessageRouter() { stop_porter(); }

void MessageRouter::stop_porter() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wire_->wake();
  if (porter_.joinable()) porter_.join();
}

void MessageRouter::run_porter() {
  Lock lock(mutex_);
  while (!is_over_) {
    try {
      tend();
    } catch (const std::exception& error) {
      // The rank's next call reports the error.
      debug(fmt::format("rank {}: {}", rank_, error.what()));
    }
    const auto timeout = context_->timeout.load();
    const std::chrono::milliseconds pause =
        std::max(std::chrono::milliseconds(1),
                 wire_->is_busy() ? kWhileBusy : std::min(kLookAtWork, timeout / 8));
    lock.unlock();
    wire_->wait_to_tend(pause);
    lock.lock();
  }
}

void MessageRouter::tend() {
  wire_->tend();
  if (is_waiting_) return;
  forget_posted();
  const Clock::time_point now = Clock::now();
  const auto interval = std::min(kLookAtWork, context_->timeout.load() / 8);
  if (now - told_work_ < interval || now - waited_ < interval) return;
  if (const std::optional<std::string> what = context_->activity.what()) {
    told_work_ = now;
    wire_->tell_work(*what);
  }
}

std::optional<std::string> MessageRouter::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return failure_;
}

void MessageRouter::tell_failure(const std::string& message) {
  stop_porter();
  const std::lock_guard lock(mutex_);
  wire_->tell_failure(message);
}

void MessageRouter::close() {
  stop_porter();
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
  const bool has_size = header.bytes == awaited.parcel.bytes;
  if (is_message(ours)) {
    if (has_size && theirs.count == ours.count && theirs.dtype == ours.dtype) return;
    throw CommError(fmt::format("{}: {} expects a message that {} did not send: {}",
                                round.self.name_of(ours), round.self.name_of(round.self.rank()),
                                round.self.name_of(awaited.parcel.member), theirs.str()));
  }
  if (theirs == ours && has_size) return;
  throw CommError(fmt::format("group {}: members made different calls: {} called {}, {} called {}",
                              round.self.membership().name, round.self.name_of(round.self.rank()),
                              ours.str(), round.self.name_of(awaited.parcel.member), theirs.str()));
}

void MessageRouter::begin_letter(int peer, Peer& from) {
  std::vector<std::byte>& body = from.letter.body;
  const auto have = static_cast<int64_t>(body.size());
  const int64_t rest = from.letter.header.bytes - have;
  const int64_t step = wire_->takes_parts() ? std::min(rest, std::max(have, kLetterStep)) : rest;
  body.resize(static_cast<size_t>(have + step));
  wire_->begin_body(peer, body.data() + have, step);
}

bool MessageRouter::is_letter_done(int peer, Peer& from) {
  while (wire_->is_body_done(peer)) {
    if (static_cast<int64_t>(from.letter.body.size()) == from.letter.header.bytes) return true;
    begin_letter(peer, from);
  }
  return false;
}

bool MessageRouter::progress(const Round& round, Awaited& awaited) {
  Peer& peer = mail_->peers[awaited.peer];
  std::deque<Letter>& early = peer.early[{round.group, is_message(round.call)}];
  if (peer.to == nullptr && !early.empty()) {
    const Letter letter = std::move(early.front());
    early.pop_front();
    check(round, awaited, letter.header);
    if (awaited.parcel.bytes > 0) {
      std::memcpy(awaited.parcel.data, letter.body.data(), letter.body.size());
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
      wire_->begin_body(awaited.peer, awaited.parcel.data, header->bytes);
    } else {
      peer.letter.header = *header;
      begin_letter(awaited.peer, peer);
    }
  }
  if (peer.to != nullptr) {
    if (!wire_->is_body_done(awaited.peer)) return false;
    std::exchange(peer.to, nullptr)->is_done = true;
  } else {
    if (!is_letter_done(awaited.peer, peer)) return false;
    const Header& header = peer.letter.header;
    peer.early[{header.group, is_message(header.call)}].push_back(std::exchange(peer.letter, {}));
  }
  peer.phase = Phase::kHeader;
  return true;
}

void MessageRouter::throw_if_released(const Round& round) const {
  if (failure_.empty()) return;
  throw CommError(fmt::format("{}: {} was released because {}", round.self.name_of(round.call),
                              round.self.name_of(round.self.rank()), failure_));
}

void MessageRouter::give_up(const Round& round, std::span<const Awaited> awaited) const {
  std::string missing;
  for (const Awaited& one : awaited) {
    if (one.is_done) continue;
    missing += (missing.empty() ? "" : ", ") + round.self.name_of(one.parcel.member);
  }
  if (missing.empty()) missing = "a member to receive the message";
  round.self.print_flight_records();
  throw CommError(fmt::format("{}: {} waited {} s for {}", round.self.name_of(round.call),
                              round.self.name_of(round.self.rank()),
                              static_cast<double>(context_->timeout.load().count()) / 1000,
                              missing));
}

std::unique_ptr<Sending> MessageRouter::begin(const Round& round, const Parcel& parcel) {
  const int peer = round.self.membership().world_ranks[static_cast<size_t>(parcel.member)];
  mail_->peers.try_emplace(peer);
  traffic_.messages += 1;
  traffic_.bytes += parcel.bytes;
  return wire_->send(peer, {round.group, round.call, parcel.bytes}, parcel.data);
}

std::unique_ptr<Sending> MessageRouter::start(const Round& round, const Parcel& parcel) {
  const std::lock_guard lock(mutex_);
  throw_if_released(round);
  return std::make_unique<Started>(*this, begin(round, parcel));
}

void MessageRouter::exchange(const Round& round, std::span<const Parcel> out,
                             std::span<const Parcel> in) {
  Lock lock(mutex_);
  throw_if_released(round);
  forget_posted();
  std::deque<std::unique_ptr<Sending>> sendings;
  for (const Parcel& parcel : out) sendings.push_back(begin(round, parcel));
  std::vector<Awaited> awaited;
  awaited.reserve(in.size());
  for (const Parcel& parcel : in) {
    awaited.push_back(
        {parcel, round.self.membership().world_ranks[static_cast<size_t>(parcel.member)]});
  }
  is_waiting_ = true;
  Patience patience(*this);
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
      patience.reset();
      continue;
    }
    forget_posted();  // also continues sendings
    const bool has_time = patience.wait(lock);
    throw_if_released(round);
    if (!has_time) give_up(round, awaited);
  }
  is_waiting_ = false;
  if (!mail_->posted.empty()) wire_->wake();
}

void MessageRouter::finish(const Round& round, std::deque<std::unique_ptr<Sending>>& sendings,
                           size_t left) {
  std::vector<std::unique_ptr<Sending>> done;  // destroyed without the lock
  Lock lock(mutex_);
  is_waiting_ = true;
  Patience patience(*this);
  while (sendings.size() > left) {
    if (sendings.front()->is_done()) {
      done.push_back(std::move(sendings.front()));
      sendings.pop_front();
      patience.reset();
      continue;
    }
    const bool has_time = patience.wait(lock);
    throw_if_released(round);
    if (!has_time) give_up(round, {});
  }
  is_waiting_ = false;
}

void MessageRouter::post(const Round& round, const Parcel& parcel) {
  const std::lock_guard lock(mutex_);
  throw_if_released(round);
  forget_posted();
  Posted& posted = mail_->posted.emplace_back();
  const auto* const data = static_cast<const std::byte*>(parcel.data);
  posted.body.assign(data, data + parcel.bytes);
  posted.sending = begin(round, {parcel.member, posted.body.data(), parcel.bytes});
  forget_posted();
  if (!mail_->posted.empty()) wire_->wake();
}

void MessageRouter::forget_posted() {
  std::erase_if(mail_->posted, [](const Posted& one) { return one.sending->is_done(); });
}

void MessageRouter::flush() {
  Lock lock(mutex_);
  is_waiting_ = true;
  Patience patience(*this);
  for (forget_posted(); !mail_->posted.empty(); forget_posted()) {
    if (!patience.wait(lock)) {
      throw CommError(fmt::format("{} messages from rank {} of the world were not received",
                                  mail_->posted.size(), rank_));
    }
    if (!failure_.empty()) throw CommError(failure_);
  }
  is_waiting_ = false;
}

}  // namespace megatron::comm
