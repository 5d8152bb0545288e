#include "megatron/launch/hosts.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "megatron/comm/tcp/record.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"

namespace megatron::launch {
namespace {

using comm::tcp::Channel;
using comm::tcp::Deadline;
using comm::tcp::RecordReader;
using comm::tcp::RecordWriter;

constexpr auto kAnswer = std::chrono::seconds(5);  // for hosts, once ranks have failed
constexpr auto kToSend = std::chrono::seconds(5);
constexpr size_t kMaxReason = 4096;

// Messages between hosts while ranks run.
enum class Kind : uint64_t { kStop = 1, kOutcome = 2 };

std::string stop_record() {
  RecordWriter record;
  record.number(static_cast<uint64_t>(Kind::kStop));
  return record.bytes();
}

std::string record_of(const JobOutcome& outcome) {
  RecordWriter record;
  record.number(static_cast<uint64_t>(Kind::kOutcome));
  record.number(static_cast<uint64_t>(outcome.exit_code));
  record.text(std::string_view(outcome.reason).substr(0, kMaxReason));
  record.number(outcome.is_final ? 1 : 0);
  record.number(outcome.is_released ? 1 : 0);
  record.number(outcome.is_lost ? 1 : 0);
  return record.bytes();
}

// Reads an outcome from a record; a fault if it is invalid.
JobOutcome outcome_of(RecordReader& record) {
  const uint64_t code = record.number();
  JobOutcome outcome{.exit_code = code < 256 ? static_cast<int>(code) : kExitFault,
                     .reason = std::string(record.text()),
                     .is_final = record.number() != 0,
                     .is_released = record.number() != 0,
                     .is_lost = record.number() != 0};
  if (!record.is_good()) outcome.exit_code = kExitFault;
  return outcome;
}

void send(Channel& channel, const std::string& record) {
  channel.send(record);
  const Deadline deadline(kToSend);
  for (channel.advance(); channel.has_output() && !deadline.is_over(); channel.advance()) {
    deadline.wait(channel.descriptor(), POLLOUT);
  }
}

JobOutcome lost(const std::string& name, const std::string& what) {
  return {.exit_code = kExitFault,
          .reason = fmt::format("{} {}; all hosts have to start again", name, what),
          .is_final = true,
          .is_released = false,
          .is_lost = true};
}

}  // namespace

// To host 0; on host 0, to another one.
struct Hosts::Link {
  std::string name;  // "host 1 (gpu2)"
  comm::tcp::Channel channel;
  bool is_gone = false;
  std::optional<JobOutcome> outcome;  // host 0: of its ranks; others: of all
};

JobOutcome outcome_of_all(const std::vector<JobOutcome>& outcomes) {
  // Rank of an outcome: higher is more informative about the failure.
  const auto weight = [](const JobOutcome& outcome) {
    if (outcome.exit_code == 0) return 0;
    if (outcome.is_released) return 1;
    return outcome.exit_code == kExitInput ? 3 : 2;
  };
  JobOutcome result = *std::max_element(
      outcomes.begin(), outcomes.end(),
      [&](const JobOutcome& a, const JobOutcome& b) { return weight(a) < weight(b); });
  result.is_final = std::any_of(outcomes.begin(), outcomes.end(),
                                [](const JobOutcome& outcome) { return outcome.is_final; });
  result.is_lost = std::any_of(outcomes.begin(), outcomes.end(),
                               [](const JobOutcome& outcome) { return outcome.is_lost; });
  return result;
}

Hosts::Hosts(const HostPlace& place, int ranks_port, const comm::Secret& secret,
             std::chrono::milliseconds timeout)
    : is_first_(place.host == 0) {
  const comm::tcp::RendezvousPoint rendezvous_point{.purpose = comm::tcp::Purpose::kHosts,
                                                    .address = place.master_address,
                                                    .port = place.master_port,
                                                    .count = place.num_hosts,
                                                    .noun = "host",
                                                    .remedy = "give each host its own --node-rank"};
  const comm::tcp::Member own{
      .number = place.host,
      .name = fmt::format("host {} ({})", place.host, host_name()),
      .settings = {{"--nproc-per-node", std::to_string(place.nproc_per_node)},
                   {"--max-restarts", std::to_string(place.max_restarts)}},
      // The port of the ranks and the input of their secret, from host 0 only; the restarts.
      .card = fmt::format("{} {} {}", ranks_port, comm::Secret::random().text(), place.restarts),
      .address = {}};
  comm::tcp::Rendezvous rendezvous = join_rendezvous(rendezvous_point, own, secret, timeout);
  const std::string& card = rendezvous.members[0].card;
  ranks_port_ = std::atoi(card.c_str());
  ranks_secret_ = secret.derived("ranks of " + card);
  for (const comm::tcp::Member& member : rendezvous.members) {
    const std::string text = member.card.substr(member.card.rfind(' ') + 1);
    restarts_ = std::max<int64_t>(restarts_, std::atoll(text.c_str()));
  }
  for (auto& [host, channel] : rendezvous.channels) {
    links_.push_back(
        {rendezvous.members[static_cast<size_t>(host)].name, std::move(channel), false, {}});
  }
}

Hosts::~Hosts() = default;

void Hosts::read_links() {
  for (Link& link : links_) {
    if (link.is_gone) continue;
    link.channel.advance();
    while (const std::optional<std::string> text = link.channel.next()) {
      RecordReader record(*text);
      const auto kind = static_cast<Kind>(record.number());
      if (kind == Kind::kStop) has_failed_elsewhere_ = true;
      if (kind == Kind::kOutcome) link.outcome = outcome_of(record);
      link.channel.advance();
    }
    if (link.channel.state() != Channel::State::kGone) continue;
    link.is_gone = true;
    if (!link.outcome) link.outcome = lost(link.name, "is gone: its launch has ended");
  }
  for (const Link& link : links_) {
    if (link.outcome && link.outcome->exit_code != 0) has_failed_elsewhere_ = true;
  }
  if (is_first_ && has_failed_elsewhere_) stop_others();
}

void Hosts::stop_others() {
  if (std::exchange(has_told_to_stop_, true)) return;
  for (Link& link : links_) {
    if (!link.is_gone) send(link.channel, stop_record());
  }
}

bool Hosts::has_failed_elsewhere() {
  read_links();
  return has_failed_elsewhere_;
}

JobOutcome Hosts::agreed(const JobOutcome& here) {
  if (!is_first_) {
    send(links_[0].channel, record_of(here));
  } else if (here.exit_code != 0) {
    stop_others();
  }
  std::optional<Deadline> deadline;
  const auto is_waiting = [&] {
    return std::any_of(links_.begin(), links_.end(),
                       [](const Link& link) { return !link.outcome; });
  };
  for (read_links(); is_waiting(); read_links()) {
    if (!deadline && (here.exit_code != 0 || has_failed_elsewhere_)) {
      deadline = Deadline(is_first_ ? kAnswer : kAnswer + std::chrono::seconds(2));
    }
    if (deadline && deadline->is_over()) break;
    std::vector<pollfd> requests;
    for (const Link& link : links_)
      requests.push_back({link.is_gone ? -1 : link.channel.descriptor(), POLLIN, 0});
    ::poll(requests.data(), requests.size(), 100);
  }
  std::vector<JobOutcome> outcomes = {here};
  for (Link& link : links_) {
    if (!link.outcome) {
      link.outcome = lost(link.name, fmt::format("has not answered for {} s", kAnswer.count()));
    }
    outcomes.push_back(*link.outcome);
  }
  JobOutcome result = outcome_of_all(outcomes);
  if (is_first_) {
    for (Link& link : links_) {
      if (!link.is_gone) send(link.channel, record_of(result));
    }
  }
  for (Link& link : links_) link.outcome.reset();
  has_failed_elsewhere_ = has_told_to_stop_ = false;
  return result;
}

}  // namespace megatron::launch
