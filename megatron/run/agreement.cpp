#include "megatron/run/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"
#include "megatron/core/json.h"
#include "megatron/run/collectively.h"

namespace megatron {
namespace {

// Settings that each host may choose for itself.
const std::set<std::string>& own_settings() {
  static const std::set<std::string> names = {"local_rank", "num_threads"};
  return names;
}

// The texts of all ranks, on all ranks.
std::vector<std::string> all_gathered(std::string text, const comm::Group& world) {
  const auto count = static_cast<size_t>(world.size());
  std::vector<int64_t> sizes(count);
  auto size = static_cast<int64_t>(text.size());
  comm::all_gather({sizes.data(), {world.size()}, DType::kInt64}, {&size, {1}, DType::kInt64},
                   world, Stream{});
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  text.resize(static_cast<size_t>(longest));
  std::string all(count * text.size(), ' ');
  comm::all_gather({all.data(), {world.size() * longest}, DType::kUInt8},
                   {text.data(), {longest}, DType::kUInt8}, world, Stream{});
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < count; ++rank) {
    texts.push_back(all.substr(rank * text.size(), static_cast<size_t>(sizes[rank])));
  }
  return texts;
}

// Do all ranks have the same text? Exchanges only a hash.
bool is_common(const std::string& text, const comm::Group& world) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char letter : text)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  std::vector<int64_t> hashes(static_cast<size_t>(world.size()));
  auto own = static_cast<int64_t>(hash);
  comm::all_gather({hashes.data(), {world.size()}, DType::kInt64}, {&own, {1}, DType::kInt64},
                   world, Stream{});
  return std::all_of(hashes.begin(), hashes.end(), [&](int64_t other) { return other == own; });
}

std::map<std::string, std::string> settings_of(const TrainingArgs& args) {
  std::map<std::string, std::string> settings;
  for (const auto& [name, value] : arg_map(args)) {
    if (!own_settings().contains(name)) settings[name] = text_of(value);
  }
  return settings;
}

// "rank 0", "ranks 2, 3 on gpu7"
std::string names_of(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (hosts.empty()) continue;
    const std::string& host = hosts[static_cast<size_t>(rank)];
    if (std::find(names.begin(), names.end(), host) == names.end()) names.push_back(host);
  }
  return fmt::format("rank{} {}{}{}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     hosts.empty() ? "" : " on ", fmt::join(names, ", "));
}

// The values of one setting with their ranks, in the order of the first rank.
std::string difference(const std::string& flag, const std::vector<std::string>& values,
                       const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == values[rank]; });
    if (same == groups.end()) {
      groups.push_back({values[rank], {static_cast<int>(rank)}});
    } else {
      same->second.push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::string> parts;
  parts.reserve(groups.size());
  for (const auto& [value, ranks] : groups) {
    parts.push_back(fmt::format("{} on {}", value, names_of(ranks, hosts)));
  }
  return fmt::format("{} is {}; give all ranks the same flags", flag, fmt::join(parts, ", "));
}

}  // namespace

void expect_agreement(const TrainingArgs& args, const std::vector<std::string>& problems,
                      const comm::Group& world) {
  const nlohmann::json own = {{"problems", problems}, {"settings", settings_of(args)}};
  const std::string text = own.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (is_common(text, world)) {
    if (!problems.empty()) throw CommonConfigError(problems);
    return;
  }
  std::vector<nlohmann::json> all;
  for (const std::string& other : all_gathered(text, world)) {
    all.push_back(parse_json(other, {}, "the settings of a rank"));
  }
  std::vector<std::string> found;
  for (const nlohmann::json& rank : all) {
    for (const std::string problem : rank.at("problems")) {
      if (std::find(found.begin(), found.end(), problem) == found.end()) found.push_back(problem);
    }
  }
  TrainingArgs bound;
  const FlagTable flags = training_flags(bound);
  const std::vector<std::string>& hosts = world.transport().context().hosts;
  std::set<std::string> names;
  for (const nlohmann::json& rank : all) {
    for (const auto& [name, value] : rank.at("settings").items()) names.insert(name);
  }
  for (const std::string& name : names) {
    const Flag* const flag = flags.find(name);
    if (flag == nullptr) continue;  // derived from other settings
    std::vector<std::string> values;
    values.reserve(all.size());
    for (const nlohmann::json& rank : all) {
      values.push_back(rank.at("settings").value(name, "None"));
    }
    const bool differ = std::any_of(values.begin(), values.end(),
                                    [&](const std::string& value) { return value != values[0]; });
    if (differ) found.push_back(difference(flag->names[0], values, hosts));
  }
  if (found.empty()) {
    found.emplace_back("the ranks resolve their flags differently; run the same program on all");
  }
  throw CommonConfigError(found);
}

void expect_same_words(std::span<const std::string> words, const comm::Group& world) {
  const std::string text = fmt::format("{}", fmt::join(words, " "));
  if (world.size() == 1 || is_common(text, world)) return;
  const std::vector<std::string> texts = all_gathered(text, world);
  throw CommonConfigError(difference("the command line", texts, world.transport().context().hosts));
}

}  // namespace megatron
