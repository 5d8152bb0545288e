#include "megatron/comm/tcp/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "megatron/comm/tcp/pending_connections.h"
#include "megatron/comm/tcp/record.h"
#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::comm::tcp {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr auto kUntilNotice = std::chrono::seconds(5);
constexpr auto kForOthers = std::chrono::seconds(1);     // to arrive and learn of an error
constexpr auto kForProof = std::chrono::seconds(3);      // for number 0 to prove itself
constexpr auto kUntilForeign = std::chrono::seconds(3);  // of strangers in place of number 0
constexpr auto kForTheOther = std::chrono::seconds(5);   // to find a second number 0
constexpr size_t kMaxListed = 8;
constexpr size_t kMaxSettings = 64;
constexpr size_t kMaxText = 256;  // of a name, a setting, a card
constexpr size_t kMinPending = 64;
constexpr size_t kAtOnce = 64;  // answers
constexpr int kMinBacklog = 128;

using Settings = std::vector<std::pair<std::string, std::string>>;

Settings settings_of(const RendezvousPoint& place, const Member& member) {
  Settings settings = {{"the build of the program", build_id()},
                       {fmt::format("the number of {}s", place.noun), std::to_string(place.count)}};
  settings.insert(settings.end(), member.settings.begin(), member.settings.end());
  return settings;
}

std::string hello_of(const RendezvousPoint& place, const Member& member) {
  RecordWriter record;
  record.number(static_cast<uint64_t>(member.number));
  record.text(member.name);
  record.text(member.card);
  const Settings settings = settings_of(place, member);
  record.number(settings.size());
  for (const auto& [name, value] : settings) {
    record.text(name);
    record.text(value);
  }
  return record.bytes();
}

// Another process's text, made safe for messages.
std::string bounded(std::string_view text) {
  std::string result(text.substr(0, kMaxText));
  for (char& letter : result) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return result;
}

std::optional<Member> member_of(const std::string& hello) {
  RecordReader record(hello);
  Member member;
  member.number = static_cast<int64_t>(record.number());
  member.name = bounded(record.text());
  member.card = record.text();
  const uint64_t count = record.count(16);
  for (uint64_t i = 0; i < count && i < kMaxSettings; ++i) {
    std::string name = bounded(record.text());
    member.settings.emplace_back(std::move(name), bounded(record.text()));
  }
  if (!record.is_good() || !record.is_at_end() || member.card.size() > kMaxText) return {};
  return member;
}

// The conflicts between two members.
std::vector<std::string> differences(const RendezvousPoint& place, const Settings& own,
                                     const std::string& own_name, const Member& other) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto& [name, value] = own[i];
    const bool is_told = i < other.settings.size() && other.settings[i].first == name;
    const std::string theirs = is_told ? other.settings[i].second : "unknown";
    if (theirs == value) continue;
    problems.push_back(
        i == 0 ? fmt::format("{} runs another build of the program ({:.8}) than {} ({:.8}); "
                             "install the same build on all hosts",
                             other.name, theirs, own_name, value)
               : fmt::format("{} is {} on {}, {} on {}; give all {}s the same value", name, value,
                             own_name, theirs, other.name, place.noun));
    if (i == 0) break;  // another build's settings may differ anyway
  }
  return problems;
}

// Lists only the first few, because thousands of ranks may have the same problem.
std::vector<std::string> listed(std::vector<std::string> problems) {
  const size_t count = problems.size();
  if (count <= kMaxListed) return problems;
  problems.resize(kMaxListed);
  problems.push_back(fmt::format("and {} more of this kind", count - kMaxListed));
  return problems;
}

std::string refusal(const std::vector<std::string>& problems) {
  RecordWriter record;
  record.number(0);
  record.text(fmt::format("{}", fmt::join(problems, "\n")));
  return record.bytes();
}

std::string answer_of(const std::vector<Member>& members) {
  RecordWriter record;
  record.number(1);
  record.number(members.size());
  for (const Member& member : members) {
    record.text(member.name);
    record.text(member.address);
    record.text(member.card);
  }
  return record.bytes();
}

// The members according to number 0's answer. Throws ConfigError if number 0 refuses, CommError if
// the answer is invalid.
std::vector<Member> members_of(const std::string& answer, const RendezvousPoint& place) {
  RecordReader record(answer);
  const bool is_welcome = record.number() == 1;
  if (!is_welcome) {
    std::string text(record.text());
    if (record.is_good()) throw ConfigError(text);
  }
  std::vector<Member> members(is_welcome ? record.count(24) : 0);
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].number = static_cast<int64_t>(i);
    members[i].name = bounded(record.text());
    members[i].address = bounded(record.text());
    members[i].card = record.text();
  }
  if (!record.is_good() || static_cast<int64_t>(members.size()) != place.count) {
    throw CommError(
        fmt::format("{} 0 at {}:{} sent an invalid answer", place.noun, place.address, place.port));
  }
  return members;
}

// Sends all pending output of all channels.
void finish_sending(std::span<Channel* const> channels, const Deadline& deadline) {
  for (;;) {
    std::vector<pollfd> requests;
    for (Channel* const channel : channels) {
      channel->advance();
      if (channel->state() == Channel::State::kOpen && channel->has_output()) {
        requests.push_back({channel->descriptor(), POLLOUT, 0});
      }
    }
    if (requests.empty() || deadline.is_over()) return;
    ::poll(requests.data(), requests.size(), 100);
  }
}

// Number 0, which accepts all others.
class Host {
 public:
  Host(const RendezvousPoint& place, const Member& own, const Secret& secret)
      : place_(place),
        own_settings_(settings_of(place, own)),
        pending_(place.purpose, secret, static_cast<size_t>(place.count) + kMinPending),
        members_(static_cast<size_t>(place.count)) {
    members_[0] = own;
  }

  Rendezvous run(Deadline deadline) {
    listeners_ = listen_at(own_addresses(place_.address, place_.port),
                           std::max(static_cast<int>(place_.count), kMinBacklog));
    const Deadline notice(kUntilNotice);
    bool is_noticed = false;
    while ((num_missing() > 0 || !problems_.empty()) && !deadline.is_over()) {
      wait(deadline);
      const bool was_well = problems_.empty();
      pending_.advance([&](Channel channel, const std::string& record) {
        return admit(std::move(channel), record);
      });
      if (was_well && !problems_.empty()) deadline = deadline.within(kForOthers);
      if (!is_noticed && notice.is_over() && problems_.empty()) {
        is_noticed = true;
        warn(fmt::format("{} 0 waits at port {} for these {}s to connect: {}", place_.noun,
                         place_.port, place_.noun, missing()));
      }
    }
    return result();
  }

 private:
  int64_t num_missing() const { return place_.count - 1 - static_cast<int64_t>(channels_.size()); }
  // "2, 3, .."
  std::string missing() const {
    std::vector<std::string> names;
    for (int64_t number = 1; number < place_.count; ++number) {
      if (channels_.contains(number)) continue;
      if (names.size() == kMaxListed) {
        names.push_back(
            fmt::format("and {} more", num_missing() - static_cast<int64_t>(kMaxListed)));
        break;
      }
      names.push_back(std::to_string(number));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }
  void wait(const Deadline& deadline) {
    std::vector<pollfd> requests;
    for (const Socket& listener : listeners_) requests.push_back({listener.get(), POLLIN, 0});
    pending_.add_to(requests);
    ::poll(requests.data(), requests.size(),
           static_cast<int>(std::min<int64_t>(deadline.left().count(), 100)));
    for (const Socket& listener : listeners_) pending_.accept(listener.get());
  }
  bool admit(Channel channel, const std::string& record) {
    std::optional<Member> member = member_of(record);
    if (!member) return false;
    std::vector<std::string> found = differences(place_, own_settings_, members_[0].name, *member);
    const int64_t number = member->number;
    const bool is_member = number >= 0 && number < place_.count;
    if (found.empty() && !is_member) {
      found.push_back(fmt::format("{} is not one of the {} {}s; {}", member->name, place_.count,
                                  place_.noun, place_.remedy));
    }
    if (found.empty() && (number == 0 || channels_.contains(number))) {
      found.push_back(fmt::format("two processes are {} {}: {} and {}; {}", place_.noun, number,
                                  members_[static_cast<size_t>(number)].name, member->name,
                                  place_.remedy));
    }
    if (!found.empty()) {
      problems_.insert(problems_.end(), found.begin(), found.end());
      refused_.push_back(std::move(channel));
      return true;
    }
    member->settings.clear();
    member->address = peer_if_there(channel.descriptor()).host();
    members_[static_cast<size_t>(number)] = *std::move(member);
    channels_.emplace(number, std::move(channel));
    return true;
  }
  void tell_all(const std::string& answer) {
    std::vector<Channel*> channels;
    for (auto& [number, channel] : channels_) channels.push_back(&channel);
    for (Channel& channel : refused_) channels.push_back(&channel);
    // A few at a time, because thousands of answers would take much memory.
    for (size_t begin = 0; begin < channels.size(); begin += kAtOnce) {
      const size_t count = std::min(kAtOnce, channels.size() - begin);
      const std::span<Channel*> some(channels.data() + begin, count);
      for (Channel* const channel : some) channel->send(answer);
      finish_sending(some, Deadline(std::chrono::seconds(10)));
    }
  }
  Rendezvous result() {
    if (!problems_.empty()) {
      const std::vector<std::string> problems = listed(problems_);
      tell_all(refusal(problems));
      throw ConfigError(problems);
    }
    if (num_missing() > 0) {
      throw CommError(
          fmt::format("{} 0 waited in vain at port {} for these {}s to connect: {}; check that "
                      "they were started "
                      "and that their hosts can reach {}",
                      place_.noun, place_.port, place_.noun, missing(), place_.address));
    }
    tell_all(answer_of(members_));
    return {std::move(members_), std::move(channels_), std::move(listeners_)};
  }

  const RendezvousPoint& place_;
  const Settings own_settings_;
  std::vector<Socket> listeners_;
  PendingConnections pending_;
  std::vector<Member> members_;
  std::map<int64_t, Channel> channels_;
  std::vector<Channel> refused_;
  std::vector<std::string> problems_;
};

// Any other member: finds number 0 and introduces itself.
class Caller {
 public:
  Caller(const RendezvousPoint& place, const Member& own, const Secret& secret)
      : place_(place),
        own_(own),
        secret_(secret),
        addresses_(resolve(place.address, place.port)),
        where_(fmt::format("{} 0 at {}:{}", place.noun, place.address, place.port)) {}

  Rendezvous run(const Deadline& deadline) {
    Channel channel = call(deadline);
    while (channel.state() == Channel::State::kOpen && !deadline.is_over()) {
      if (const std::optional<std::string> answer = channel.next()) {
        Rendezvous rendezvous{members_of(*answer, place_), {}, {}};
        rendezvous.channels.emplace(0, std::move(channel));
        return rendezvous;
      }
      deadline.within(std::chrono::seconds(1)).wait(channel.descriptor(), channel.events());
      channel.advance();
    }
    throw CommError(fmt::format(
        "{} waited in vain for the list of members from {}; see its messages", own_.name, where_));
  }

 private:
  // A channel to number 0 after both ends have proved themselves.
  Channel call(const Deadline& deadline) {
    for (;;) {
      const std::string problem = attempt(deadline);
      if (channel_) return *std::move(channel_);
      const std::string text =
          fmt::format("{} cannot connect to {}: {}; {}", own_.name, where_, problem, kRemedy);
      if (foreign_ && foreign_->is_over()) {
        throw CommError(
            fmt::format("{} cannot connect to {}: what answers there is not part of this job: {}; "
                        "check for another "
                        "program at this port. If it is another job, choose another --master-port "
                        "(MASTER_PORT); if it is this job, give all hosts the same MEGATRON_SECRET",
                        own_.name, where_, problem));
      }
      if (deadline.is_over()) throw CommError(text);
      if (own_.number <= 1 && notice_.is_over() && !std::exchange(is_noticed_, true)) warn(text);
      std::this_thread::sleep_for(kRetry);
    }
  }
  // Tries to connect; returns the reason if that fails.
  std::string attempt(const Deadline& deadline) {
    Socket socket = connect_once(addresses_, deadline);
    if (!socket.is_open()) {
      foreign_.reset();
      return std::strerror(errno);
    }
    Channel channel(std::move(socket), Channel::End::kCaller, place_.purpose, secret_);
    channel.send(hello_of(place_, own_));
    const Deadline until = deadline.within(kForProof);
    for (channel.advance(); channel.state() == Channel::State::kProving; channel.advance()) {
      if (!until.wait(channel.descriptor(), channel.events())) {
        return "a program accepts connections there but does not answer";
      }
    }
    if (channel.state() == Channel::State::kOpen) {
      keep_alive(channel.descriptor());
      channel_.emplace(std::move(channel));
      return "";
    }
    if (channel.is_stranger() && !foreign_) foreign_ = Deadline(kUntilForeign);
    return channel.problem();
  }

  static constexpr const char* kRemedy =
      "check that it was started, that its address is right and that no firewall closes the port";
  const RendezvousPoint& place_;
  const Member& own_;
  const Secret& secret_;
  const std::vector<Address> addresses_;
  const std::string where_;
  const Deadline notice_{kUntilNotice};
  bool is_noticed_ = false;
  std::optional<Deadline> foreign_;  // until when a foreign program at the port is tolerated
  std::optional<Channel> channel_;
};

// If two processes believe that they are number 0, the one that is not at the job's address queries
// that address.
void refuse_second_host(const RendezvousPoint& place, const Member& own, const Secret& secret,
                        const Deadline& deadline) {
  const std::vector<Address> addresses = resolve(place.address, place.port);
  if (std::any_of(addresses.begin(), addresses.end(),
                  [](const Address& address) { return address.is_own(); })) {
    return;
  }
  try {
    Caller(place, own, secret).run(deadline.within(kForTheOther));
  } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): there is no second host
  }
}

}  // namespace

Rendezvous join_rendezvous(const RendezvousPoint& place, const Member& own, const Secret& secret,
                           std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  if (own.number != 0) return Caller(place, own, secret).run(deadline);
  refuse_second_host(place, own, secret, deadline);
  Rendezvous rendezvous = Host(place, own, secret).run(deadline);
  for (const auto& [number, channel] : rendezvous.channels) keep_alive(channel.descriptor());
  return rendezvous;
}

}  // namespace megatron::comm::tcp
