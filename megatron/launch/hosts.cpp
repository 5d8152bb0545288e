#include "megatron/launch/hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"

namespace megatron::launch {
namespace {

using comm::tcp::Deadline;
using comm::tcp::Socket;
using Json = nlohmann::json;

constexpr const char* kKind = "megatron launch 1";  // and the version of what follows
constexpr auto kRetry = std::chrono::milliseconds(100);
constexpr auto kUntilNotice = std::chrono::seconds(10);
constexpr auto kForOthers = std::chrono::seconds(1);    // to come and be told what is wrong
constexpr auto kForTheOther = std::chrono::seconds(5);  // host 0 to be there
constexpr auto kAnswer = std::chrono::seconds(5);       // for hosts, once ranks have failed
constexpr size_t kMaxLine = 1 << 20;
constexpr int kBacklog = 4096;

bool send_line(const Socket& socket, const Json& message) {
  const std::string line =
      message.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  return comm::tcp::write_all(socket.get(), line.data(), line.size(),
                              Deadline(std::chrono::seconds(5)));
}

// Adds what has come. False when the other side is gone, or says too much.
bool receive(const Socket& socket, std::string& text) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0) return false;
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > kMaxLine) return false;
  }
}

// The first line of the text, taken off it. Nothing when it has none, null when it is not JSON.
std::optional<Json> take_line(std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return {};
  Json message =
      Json::parse(text.begin(), text.begin() + static_cast<int64_t>(end), nullptr, false);
  text.erase(0, end + 1);
  if (!message.is_object()) message = Json();
  return message;
}

Json hello_of(const HostPlace& place) {
  return {{"kind", kKind},
          {"host", place.host},
          {"name", host_name()},
          {"build", build_id()},
          {"--nnodes", place.num_hosts},
          {"--nproc-per-node", place.nproc_per_node},
          {"--max-restarts", place.max_restarts}};
}

std::string name_of(const Json& hello) {
  return fmt::format("host {} ({})", hello.value("host", -1), hello.value("name", "?"));
}

// What does not fit between host 0 and another one.
std::vector<std::string> problems_between(const Json& own, const Json& other) {
  std::vector<std::string> problems;
  const std::string build = other.value("build", "");
  if (build != own.at("build")) {
    problems.push_back(fmt::format(
        "{} runs another build of the program ({:.8}) than {} ({:.8}); install the same "
        "on all hosts",
        name_of(other), build, name_of(own), own.value("build", "")));
  }
  for (const char* const flag : {"--nnodes", "--nproc-per-node", "--max-restarts"}) {
    if (other.value(flag, -1) == own.at(flag)) continue;
    problems.push_back(fmt::format("{} is {} on {}, {} on {}; give all hosts the same", flag,
                                   own.value(flag, -1), name_of(own), other.value(flag, -1),
                                   name_of(other)));
  }
  return problems;
}

Json text_of(const JobOutcome& outcome) {
  return {{"code", outcome.exit_code},
          {"reason", outcome.reason},
          {"is_final", outcome.is_final},
          {"is_released", outcome.is_released}};
}

JobOutcome outcome_of(const Json& text) {
  return {.exit_code = text.value("code", kExitFault),
          .reason = text.value("reason", ""),
          .is_final = text.value("is_final", false),
          .is_released = text.value("is_released", false)};
}

JobOutcome lost(const std::string& name, const std::string& what) {
  return {.exit_code = kExitFault,
          .reason = fmt::format("{} {}; all hosts have to start again", name, what),
          .is_final = true,
          .is_released = false};
}

}  // namespace

JobOutcome outcome_of_all(const std::vector<JobOutcome>& outcomes) {
  // The greater, the more it says about what went wrong.
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
  return result;
}

Hosts::Hosts(const HostPlace& place, int ranks_port, std::chrono::milliseconds timeout)
    : is_first_(place.host == 0), ranks_port_(ranks_port) {
  const Deadline deadline(timeout);
  if (is_first_) {
    refuse_second_host_0(place);
    receive_all(place, deadline);
  } else {
    join(place, deadline);
  }
  for (const Link& link : links_) comm::tcp::keep_alive(link.socket.get());
}

// Of two hosts that both believe to be host 0, one is not where the others look for it.
void Hosts::refuse_second_host_0(const HostPlace& place) {
  const auto addresses = comm::tcp::resolve(place.master_address, place.master_port);
  if (std::any_of(addresses.begin(), addresses.end(),
                  [](const auto& address) { return address.is_own(); })) {
    return;
  }
  Socket socket;
  const Deadline deadline(kForTheOther);
  while (!(socket = comm::tcp::connect_once(addresses, deadline)).is_open() &&
         !deadline.is_over()) {
    std::this_thread::sleep_for(kRetry);
  }
  std::string text;
  if (socket.is_open() && send_line(socket, hello_of(place))) {
    for (bool is_there = true; is_there && deadline.wait(socket.get(), POLLIN);) {
      is_there = receive(socket, text);
      const std::optional<Json> answer = take_line(text);
      if (answer && answer->contains("refused")) throw ConfigError(answer->value("refused", ""));
    }
  }
  warn(fmt::format("--node-rank 0, but --master-addr {} is not an address of this host, {}",
                   place.master_address, host_name()));
}

void Hosts::receive_all(const HostPlace& place, const Deadline& until) {
  const Socket listener = comm::tcp::listen_at(place.master_port, kBacklog);
  const Json own = hello_of(place);
  const Deadline notice(kUntilNotice);
  bool is_noticed = false;
  Deadline deadline = until;
  std::vector<std::string> problems;
  std::vector<std::pair<Socket, std::string>> guests;  // and what they have said so far
  std::vector<Socket> refused;
  const auto missing = [&] {
    std::vector<int64_t> hosts;
    for (int64_t host = 1; host < place.num_hosts; ++host) {
      if (std::none_of(links_.begin(), links_.end(),
                       [&](const Link& link) { return link.host == host; })) {
        hosts.push_back(host);
      }
    }
    return hosts;
  };
  const auto admit = [&](Socket socket, const Json& hello) {
    const auto host = hello.value("host", int64_t{-1});
    std::vector<std::string> found = problems_between(own, hello);
    const auto same = std::find_if(links_.begin(), links_.end(),
                                   [&](const Link& link) { return link.host == host; });
    if (host == 0 || same != links_.end()) {
      found.push_back(fmt::format("two hosts have --node-rank {}: {} and {}; give each its own",
                                  host, host == 0 ? name_of(own) : same->name, name_of(hello)));
    }
    if (!found.empty() || host < 0 || host >= place.num_hosts) {
      if (problems.empty()) deadline = deadline.within(kForOthers);
      problems.insert(problems.end(), found.begin(), found.end());
      refused.push_back(std::move(socket));
    } else {
      Link& link = links_.emplace_back();
      link.host = host;
      link.name = name_of(hello);
      link.socket = std::move(socket);
    }
  };
  while ((!missing().empty() || !problems.empty()) && !deadline.is_over()) {
    std::vector<pollfd> requests = {{listener.get(), POLLIN, 0}};
    for (const auto& guest : guests) requests.push_back({guest.first.get(), POLLIN, 0});
    ::poll(requests.data(), requests.size(), 100);
    for (Socket socket = comm::tcp::accept_at(listener.get()); socket.is_open();
         socket = comm::tcp::accept_at(listener.get())) {
      guests.emplace_back(std::move(socket), "");
    }
    std::erase_if(guests, [&](auto& guest) {
      const bool is_there = receive(guest.first, guest.second);
      const std::optional<Json> hello = take_line(guest.second);
      if (!hello) return !is_there;
      if (hello->value("kind", "") == kKind) admit(std::move(guest.first), *hello);
      return true;
    });
    if (!is_noticed && notice.is_over() && problems.empty()) {
      is_noticed = true;
      warn(fmt::format("waiting at port {} for the launch of these hosts: {}", place.master_port,
                       fmt::join(missing(), ", ")));
    }
  }
  if (!problems.empty()) {
    const Json answer = {{"refused", fmt::format("{}", fmt::join(problems, "\n"))}};
    for (const Link& link : links_) send_line(link.socket, answer);
    for (const Socket& socket : refused) send_line(socket, answer);
    throw ConfigError(problems);
  }
  if (!missing().empty()) {
    throw CommError(fmt::format(
        "launch: these hosts did not come to port {} in time: {}; start launch on each, "
        "with its own --node-rank and this --master-addr ({})",
        place.master_port, fmt::join(missing(), ", "), place.master_address));
  }
  for (const Link& link : links_) {
    send_line(link.socket, {{"name", name_of(own)}, {"port", ranks_port_}});
  }
}

void Hosts::join(const HostPlace& place, const Deadline& deadline) {
  const std::string where = fmt::format("{}:{}", place.master_address, place.master_port);
  const auto addresses = comm::tcp::resolve(place.master_address, place.master_port);
  const Deadline notice(kUntilNotice);
  bool is_noticed = false;
  const Json own = hello_of(place);
  Link first;
  first.name = "host 0";
  for (;;) {
    first.socket = comm::tcp::connect_once(addresses, deadline);
    if (first.socket.is_open() && send_line(first.socket, own)) break;
    const std::string problem = fmt::format(
        "{} cannot reach host 0 at {}: {}; check that launch runs there with --node-rank "
        "0, that --master-addr and --master-port are the same on all hosts, and that no "
        "firewall closes the port",
        name_of(own), where, std::strerror(errno));
    if (deadline.is_over()) throw CommError("launch: " + problem);
    if (!is_noticed && notice.is_over()) {
      is_noticed = true;
      warn(problem);
    }
    std::this_thread::sleep_for(kRetry);
  }
  std::optional<Json> answer;
  for (bool is_there = true; !answer; answer = take_line(first.text)) {
    if (!is_there || !deadline.wait(first.socket.get(), POLLIN)) {
      throw CommError(fmt::format(
          "launch: host 0 at {} ended before all hosts had come; see what it says", where));
    }
    is_there = receive(first.socket, first.text);
  }
  if (answer->contains("refused")) throw ConfigError(answer->value("refused", ""));
  ranks_port_ = answer->value("port", 0);
  first.name = answer->value("name", first.name);
  links_.push_back(std::move(first));
}

void Hosts::read_links() {
  for (Link& link : links_) {
    if (link.is_gone) continue;
    const bool is_there = receive(link.socket, link.text);
    while (const std::optional<Json> message = take_line(link.text)) {
      if (message->contains("stop")) has_failed_elsewhere_ = true;
      if (message->contains("outcome")) link.outcome = outcome_of(message->at("outcome"));
    }
    if (is_there) continue;
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
  for (const Link& link : links_) {
    if (!link.is_gone) send_line(link.socket, {{"stop", true}});
  }
}

bool Hosts::has_failed_elsewhere() {
  read_links();
  return has_failed_elsewhere_;
}

JobOutcome Hosts::agreed(const JobOutcome& here) {
  if (!is_first_) {
    send_line(links_[0].socket, {{"outcome", text_of(here)}});
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
      requests.push_back({link.is_gone ? -1 : link.socket.get(), POLLIN, 0});
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
    for (const Link& link : links_) {
      if (!link.is_gone) send_line(link.socket, {{"outcome", text_of(result)}});
    }
  }
  for (Link& link : links_) link.outcome.reset();
  has_failed_elsewhere_ = has_told_to_stop_ = false;
  return result;
}

}  // namespace megatron::launch
