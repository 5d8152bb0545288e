#include "annex/deepspeed/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<int64_t> first_slots(int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// "worker-0 slots=4 anything"; nothing if the line is not of that form.
std::optional<HostSlots> host_of(std::string_view line) {
  const size_t name_end = line.find_first_of(kSpace);
  if (name_end == std::string_view::npos) return std::nullopt;
  const std::string_view rest = trimmed(line.substr(name_end));
  constexpr std::string_view kSlots = "slots=";
  if (!rest.starts_with(kSlots)) return std::nullopt;
  const std::string_view digits = rest.substr(
      kSlots.size(),
      std::min(rest.find_first_not_of("0123456789", kSlots.size()), rest.size()) - kSlots.size());
  const std::optional<int64_t> count = integer_of(digits);
  constexpr int64_t kMaxSlots = 1024;
  if (!count || *count > kMaxSlots) return std::nullopt;
  return HostSlots{std::string(line.substr(0, name_end)), first_slots(*count)};
}

// One node of --include or --exclude.
struct Node {
  size_t host = 0;             // its position among the hosts
  std::vector<int64_t> slots;  // in the order that was typed
  bool is_whole = false;       // no slots were typed: all of them
};

class Filter {
 public:
  Filter(const std::vector<HostSlots>& hosts, const char* flag, const std::string& text)
      : hosts_(hosts), flag_(flag), text_(text) {
    for (const std::string& part : split(text, '@')) nodes_.push_back(node_of(part));
  }

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(
        fmt::format("{} {}: {}; write it as node:slot,slot@node", flag_, text_, what));
  }

  Node node_of(const std::string& part) const {
    const std::vector<std::string> name_and_slots = split(part, ':');
    if (name_and_slots.size() > 2) fail(fmt::format("{} has more than one colon", part));
    Node node;
    const std::string& name = name_and_slots[0];
    const auto host = std::find_if(hosts_.begin(), hosts_.end(),
                                   [&](const HostSlots& h) { return h.name == name; });
    if (host == hosts_.end()) fail(fmt::format("there is no host \"{}\"", name));
    node.host = static_cast<size_t>(host - hosts_.begin());
    if (name_and_slots.size() == 1) {
      node.is_whole = true;
      node.slots = host->slots;
      return node;
    }
    for (const std::string& word : split(name_and_slots[1], ',')) {
      const std::optional<int64_t> slot = integer_of(trimmed(word));
      if (!slot) fail(fmt::format("the slot \"{}\" is no number", word));
      if (std::find(host->slots.begin(), host->slots.end(), *slot) == host->slots.end()) {
        fail(fmt::format("host {} has no slot {}", name, *slot));
      }
      node.slots.push_back(*slot);
    }
    return node;
  }

  const std::vector<HostSlots>& hosts_;
  const char* flag_;
  const std::string& text_;
  std::vector<Node> nodes_;
};

std::vector<HostSlots> with_slots(const std::vector<HostSlots>& hosts,
                                  const std::vector<std::set<int64_t>>& slots) {
  std::vector<HostSlots> result;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!slots[i].empty()) result.push_back({hosts[i].name, {slots[i].begin(), slots[i].end()}});
  }
  return result;
}

void expect_some(const std::vector<HostSlots>& hosts) {
  const bool has_slots = std::any_of(hosts.begin(), hosts.end(),
                                     [](const HostSlots& host) { return !host.slots.empty(); });
  if (!has_slots) throw ConfigError("deepspeed: no slot is left to run on; exclude fewer");
}

void check(const HostChoice& choice) {
  const bool filters = !choice.include.empty() || !choice.exclude.empty();
  if (filters && (choice.num_nodes >= 0 || choice.num_gpus >= 0)) {
    throw ConfigError(
        "--num_nodes and --num_gpus cannot be combined with --include and --exclude; choose the "
        "slots in one of the two ways");
  }
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& text, const std::string& source) {
  std::vector<HostSlots> hosts;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string_view words = trimmed(line);
    if (words.empty() || words[0] == '#') continue;
    const std::optional<HostSlots> host = host_of(words);
    if (!host) {
      throw FormatError(
          fmt::format("{}: line {} is \"{}\"; it must be a host and its slots, as in "
                      "worker-0 slots=4",
                      source, number, words));
    }
    for (const HostSlots& other : hosts) {
      if (other.name != host->name) continue;
      throw FormatError(fmt::format("{}: line {} names the host {} again; write one line a host",
                                    source, number, host->name));
    }
    hosts.push_back(*host);
  }
  if (hosts.empty()) {
    throw FormatError(
        fmt::format("{}: names no host; write a line a host, as in worker-0 slots=4", source));
  }
  return hosts;
}

std::vector<HostSlots> filtered(const std::vector<HostSlots>& hosts, const std::string& include,
                                const std::string& exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  if (!include.empty() && !exclude.empty()) {
    throw ConfigError(fmt::format("--include {} and --exclude {} exclude each other; give one",
                                  include, exclude));
  }
  const bool includes = !include.empty();
  const Filter filter(hosts, includes ? "--include" : "--exclude", includes ? include : exclude);
  std::vector<std::set<int64_t>> slots(hosts.size());
  std::vector<bool> is_whole(hosts.size(), false);
  if (!includes) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      slots[i].insert(hosts[i].slots.begin(), hosts[i].slots.end());
    }
  }
  for (const Node& node : filter.nodes()) {
    std::set<int64_t>& chosen = slots[node.host];
    // Compat: slots that follow the bare name of their host replace it.
    if (includes && is_whole[node.host]) chosen.clear();
    is_whole[node.host] = node.is_whole;
    for (const int64_t slot : node.slots) {
      if (includes) {
        chosen.insert(slot);
      } else {
        chosen.erase(slot);
      }
    }
  }
  return with_slots(hosts, slots);
}

std::vector<HostSlots> limited(std::vector<HostSlots> hosts, int64_t num_nodes, int64_t num_gpus) {
  if (num_nodes > 0 && static_cast<size_t>(num_nodes) < hosts.size()) {
    hosts.resize(static_cast<size_t>(num_nodes));
  }
  if (num_gpus > 0) {
    for (HostSlots& host : hosts) host.slots = first_slots(num_gpus);
  }
  return hosts;
}

std::vector<HostSlots> local_hosts(const HostChoice& choice, int64_t num_gpus,
                                   const std::string& visible_devices) {
  check(choice);
  if (choice.num_nodes > 1) {
    throw ConfigError(fmt::format("--num_nodes {} needs --hostfile with the names of the hosts",
                                  choice.num_nodes));
  }
  std::vector<HostSlots> hosts = {{"localhost", first_slots(std::max<int64_t>(num_gpus, 1))}};
  const bool chooses = !choice.include.empty() || !choice.exclude.empty() ||
                       choice.num_nodes >= 0 || choice.num_gpus >= 0;
  if (!chooses && !visible_devices.empty()) {
    // The GPUs that are visible are not counted from 0.
    for (const std::string& word : split(visible_devices, ',')) {
      const std::optional<int64_t> device = integer_of(trimmed(word));
      if (!device || *device < 0) {
        throw ConfigError(
            fmt::format("CUDA_VISIBLE_DEVICES={} must be numbers with commas; set it so, or choose "
                        "by --include",
                        visible_devices));
      }
    }
    hosts[0].slots.clear();
    for (const std::string& word : split(visible_devices, ',')) {
      hosts[0].slots.push_back(*integer_of(trimmed(word)));
    }
    return hosts;
  }
  hosts =
      limited(filtered(hosts, choice.include, choice.exclude), choice.num_nodes, choice.num_gpus);
  expect_some(hosts);
  return hosts;
}

std::vector<HostSlots> chosen_hosts(const std::vector<HostSlots>& hosts, const HostChoice& choice) {
  check(choice);
  std::vector<HostSlots> chosen =
      limited(filtered(hosts, choice.include, choice.exclude), choice.num_nodes, choice.num_gpus);
  expect_some(chosen);
  return chosen;
}

}  // namespace megatron::frontends
