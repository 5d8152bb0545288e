#include "annex/corpus/duplicate_groups.h"

#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "annex/corpus/json_object.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"

namespace megatron::corpus {
namespace {

using Json = nlohmann::ordered_json;

// Ids in sets that grow together.
class Union {
 public:
  void join(const std::string& a, const std::string& b) {
    const int64_t root_a = root(number_of(a));
    const int64_t root_b = root(number_of(b));
    // The earlier id is the root, so that roots are in the order of first appearance.
    parents_[static_cast<size_t>(std::max(root_a, root_b))] = std::min(root_a, root_b);
  }

  // The sets, in the order of their first ids.
  std::vector<std::vector<std::string>> sets() {
    std::vector<std::vector<std::string>> sets;
    std::unordered_map<int64_t, size_t> places;  // by root
    for (int64_t i = 0; i < std::ssize(ids_); ++i) {
      const auto [place, is_new] = places.try_emplace(root(i), sets.size());
      if (is_new) sets.emplace_back();
      sets[place->second].push_back(ids_[static_cast<size_t>(i)]);
    }
    return sets;
  }

 private:
  int64_t number_of(const std::string& id) {
    const auto known = numbers_.find(id);
    if (known != numbers_.end()) return known->second;
    const auto number = std::ssize(ids_);
    numbers_.emplace(ids_.emplace_back(id), number);
    parents_.push_back(number);
    return number;
  }

  int64_t root(int64_t number) {
    auto parent = [&](int64_t i) -> int64_t& { return parents_[static_cast<size_t>(i)]; };
    while (parent(number) != number) number = parent(number) = parent(parent(number));
    return number;
  }

  std::deque<std::string> ids_;
  std::unordered_map<std::string_view, int64_t> numbers_;  // into ids_
  std::vector<int64_t> parents_;
};

struct Pairs {
  std::vector<std::pair<std::string, std::string>> similar;
  std::string problem;
};

// The pairs of {"main": [{"other": similarity}, ...], ...}.
Pairs pairs_of(std::string_view line, double threshold) {
  const Pairs bad = {.similar = {},
                     .problem =
                         "expected {\"id\": [{\"id\": similarity}, ...]}; give the output "
                         "of find-duplicates"};
  const Json object = try_parse_json(line, kJsonLine);
  if (!object.is_object()) return bad;
  Pairs pairs;
  for (const auto& [main, others] : object.items()) {
    if (!others.is_array()) return bad;
    for (const Json& other : others) {
      if (!other.is_object()) return bad;
      for (const auto& [id, similarity] : other.items()) {
        if (!similarity.is_number()) return bad;
        if (similarity.get<double>() >= threshold) pairs.similar.emplace_back(main, id);
      }
    }
  }
  return pairs;
}

// The ids that are not the first of their group; nothing if the line is no group.
std::optional<std::vector<std::string>> later_ids_of(std::string_view line) {
  const Json object = try_parse_json(line, kJsonLine);
  if (!object.is_object()) return std::nullopt;
  std::vector<std::string> later;
  for (const auto& [number, ids] : object.items()) {
    if (!ids.is_array()) return std::nullopt;
    for (const Json& id : ids) {
      if (!id.is_string()) return std::nullopt;
      if (&id != &ids.front()) later.push_back(id.get<std::string>());
    }
  }
  return later;
}

using Ids = std::unordered_set<std::string>;

int64_t read_groups(const std::filesystem::path& groups, const RunOptions& options, Ids& later) {
  using Later = std::optional<std::vector<std::string>>;
  const RunOptions quiet = {.threads = options.threads};
  return each_line<Later>(
      {&groups, 1}, quiet, [] { return [](const Line& line) { return later_ids_of(line.text); }; },
      [&](const Line& line, Later& ids) {
        // A lost group would leave duplicates in the corpus, so a bad line ends the command.
        if (!ids) {
          throw FormatError(about(
              line, "expected {\"number\": [\"id\", ...]}; give the output of group-duplicates"));
        }
        later.insert(ids->begin(), ids->end());
      });
}

}  // namespace

GroupCounts group_duplicates(const std::filesystem::path& pairs,
                             const std::filesystem::path& output, double threshold,
                             const RunOptions& options) {
  expect_other_files({&pairs, 1}, {&output, 1});
  Union ids;
  GroupCounts counts;
  const auto take = [&](const Line& line, Pairs& found) {
    if (!found.problem.empty()) {
      report_bad(options, line, found.problem);
      ++counts.bad_lines;
    }
    for (const auto& [a, b] : found.similar) ids.join(a, b);
  };
  counts.lines = each_line<Pairs>(
      {&pairs, 1}, options,
      [=] { return [=](const Line& line) { return pairs_of(line.text, threshold); }; }, take);

  FileWriter writer(output);
  for (const std::vector<std::string>& set : ids.sets()) {
    if (set.size() == 1) continue;  // an id that was paired with itself
    std::string line = "{\"" + std::to_string(counts.groups++) + "\": [";
    for (const std::string& id : set) {
      if (&id != &set.front()) line += ", ";
      line += json_text(id);
    }
    writer.write(line + "]}\n");
    counts.removable += std::ssize(set) - 1;
  }
  writer.commit();
  return counts;
}

RemovalCounts remove_group_duplicates(const std::filesystem::path& groups,
                                      const std::filesystem::path& data,
                                      const std::filesystem::path& output,
                                      const RunOptions& options) {
  const std::vector<std::filesystem::path> inputs = {groups, data};
  expect_other_files(inputs, {&output, 1});
  Ids later;
  RemovalCounts counts;
  counts.groups = read_groups(groups, options, later);
  counts.lines = rewrite_lines({&data, 1}, output, options, [&] {
    return [&, object = JsonObject()](const Line& line) mutable {
      if (std::optional<std::string> problem = object.parse(line.text)) {
        return NewLine::bad(*problem);
      }
      const std::string* const url = object.text("url");
      if (url == nullptr) return NewLine::bad("the object has no text \"url\"");
      return later.contains(*url) ? NewLine::drop() : NewLine::write(object.line());
    };
  });
  counts.removed = counts.lines.lines - counts.lines.written - counts.lines.bad;
  return counts;
}

}  // namespace megatron::corpus
