#include "megatron/comm/messages/post_office.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

bool is_message(const Call& call) {
  return call.operation == Operation::kSend || call.operation == Operation::kRecv;
}

}  // namespace

class PostOffice::Patience {
 public:
  explicit Patience(PostOffice& office) : office_(&office) {}

  // Something has moved.
  void reset() { begin_ = Clock::now(); }
  // Nothing has: takes notice of failures and gives way. False when time is up.
  bool wait() {
    const Clock::time_point now = Clock::now();
    if (const std::optional<Wire::Failure> failure = office_->wire_->failure()) {
      const std::lock_guard lock(office_->mutex_);
      const std::vector<std::string>& hosts = office_->context_->hosts;
      const std::string host =
          hosts.empty() ? "" : " on " + hosts[static_cast<size_t>(failure->rank)];
      office_->failure_ =
          fmt::format("rank {} of the world{} failed: {}", failure->rank, host, failure->message);
    }
    if (now - begin_ > office_->context_->timeout.load()) return false;
    office_->wire_->rest(now - begin_);
    return true;
  }

 private:
  PostOffice* office_;
  Clock::time_point begin_ = Clock::now();
};

PostOffice::PostOffice(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context)
    : wire_(std::move(wire)),
      context_(std::move(context)),
      peers_(static_cast<size_t>(wire_->size())) {}

std::optional<std::string> PostOffice::failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return {};
  return failure_;
}

void PostOffice::check(const Round& round, const Awaited& awaited, const Header& header) const {
  const Call& theirs = header.call;
  const Call& ours = round.call;
  if (is_message(ours)) {
    if (theirs.count == ours.count && theirs.dtype == ours.dtype) return;
    throw CommError(fmt::format("{}: {} expects what {} did not send: {}", round.self.name_of(ours),
                                round.self.name_of(round.self.rank()),
                                round.self.name_of(awaited.parcel.member), theirs.str()));
  }
  if (theirs == ours && header.bytes == awaited.parcel.bytes) return;
  throw CommError(fmt::format("group {}: members made different calls: {} called {}, {} called {}",
                              round.self.membership().name, round.self.name_of(round.self.rank()),
                              ours.str(), round.self.name_of(awaited.parcel.member), theirs.str()));
}

bool PostOffice::progress(const Round& round, Awaited& awaited) {
  Peer& peer = peers_[static_cast<size_t>(awaited.peer)];
  std::deque<Letter>& early = peer.early[{round.group, is_message(round.call)}];
  if (peer.to == nullptr && !early.empty()) {
    const Letter letter = std::move(early.front());
    early.pop_front();
    check(round, awaited, letter.header);
    if (awaited.parcel.bytes > 0) {
      std::memcpy(awaited.parcel.data, letter.body.get(),
                  static_cast<size_t>(awaited.parcel.bytes));
    }
    return awaited.is_done = true;
  }
  if (peer.phase == Phase::kHeader) {
    const std::optional<Header> header = wire_->next(awaited.peer);
    if (!header) return false;
    peer.phase = Phase::kBody;
    if (header->group == round.group && is_message(header->call) == is_message(round.call)) {
      check(round, awaited, *header);
      peer.to = &awaited;
      wire_->begin_body(awaited.peer, awaited.parcel.data, header->bytes);
    } else {
      peer.letter.header = *header;
      peer.letter.body =
          std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(header->bytes));
      wire_->begin_body(awaited.peer, peer.letter.body.get(), header->bytes);
    }
  }
  if (!wire_->is_body_done(awaited.peer)) return false;
  peer.phase = Phase::kHeader;
  if (Awaited* const to = std::exchange(peer.to, nullptr)) {
    to->is_done = true;
  } else {
    const Header& header = peer.letter.header;
    peer.early[{header.group, is_message(header.call)}].push_back(std::move(peer.letter));
  }
  return true;
}

void PostOffice::exchange(const Round& round, std::span<const Parcel> out,
                          std::span<const Parcel> in) {
  const std::vector<int>& world_ranks = round.self.membership().world_ranks;
  const auto rank_of = [&](int member) { return world_ranks[static_cast<size_t>(member)]; };
  if (const std::optional<std::string> others = failure()) {
    throw CommError(fmt::format("{}: {} was released because {}", round.self.name_of(round.call),
                                round.self.name_of(round.self.rank()), *others));
  }
  forget_posted();
  std::vector<std::unique_ptr<Sending>> sendings;
  for (const Parcel& parcel : out) {
    sendings.push_back(
        wire_->send(rank_of(parcel.member), {round.group, round.call, parcel.bytes}, parcel.data));
  }
  std::vector<Awaited> awaited;
  for (const Parcel& parcel : in) awaited.push_back({parcel, rank_of(parcel.member)});

  Patience patience(*this);
  for (;;) {
    bool has_moved = false;
    bool is_done = true;
    for (Awaited& one : awaited) {
      if (!one.is_done) has_moved |= progress(round, one);
      is_done &= one.is_done;
    }
    has_moved |= std::erase_if(sendings, [](const auto& one) { return one->is_done(); }) > 0;
    if (is_done && sendings.empty()) return;
    if (has_moved) {
      patience.reset();
      continue;
    }
    forget_posted();  // which moves on what is still to be sent
    const bool has_time = patience.wait();
    if (const std::optional<std::string> others = failure()) {
      throw CommError(fmt::format("{}: {} was released because {}", round.self.name_of(round.call),
                                  round.self.name_of(round.self.rank()), *others));
    }
    if (has_time) continue;
    std::string missing;
    for (const Awaited& one : awaited) {
      if (one.is_done) continue;
      missing += (missing.empty() ? "" : ", ") + round.self.name_of(one.parcel.member);
    }
    if (missing.empty()) missing = "a member to take what was sent";
    round.self.print_flight_records();
    throw CommError(fmt::format("{}: {} waited {} s for {}", round.self.name_of(round.call),
                                round.self.name_of(round.self.rank()),
                                static_cast<double>(context_->timeout.load().count()) / 1000,
                                missing));
  }
}

void PostOffice::post(const Round& round, const Parcel& parcel) {
  forget_posted();
  Posted posted;
  posted.body = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(parcel.bytes));
  if (parcel.bytes > 0) {
    std::memcpy(posted.body.get(), parcel.data, static_cast<size_t>(parcel.bytes));
  }
  const int peer = round.self.membership().world_ranks[static_cast<size_t>(parcel.member)];
  posted.sending = wire_->send(peer, {round.group, round.call, parcel.bytes}, posted.body.get());
  posted_.push_back(std::move(posted));
}

void PostOffice::forget_posted() {
  std::erase_if(posted_, [](const Posted& one) { return one.sending->is_done(); });
}

void PostOffice::flush() {
  Patience patience(*this);
  for (forget_posted(); !posted_.empty(); forget_posted()) {
    if (!patience.wait()) {
      throw CommError(
          fmt::format("{} messages that rank {} of the world has sent were not received",
                      posted_.size(), wire_->rank()));
    }
    if (const std::optional<std::string> others = failure()) throw CommError(*others);
  }
}

}  // namespace megatron::comm
