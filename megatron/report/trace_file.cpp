#include "megatron/report/trace_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/core/json.h"

namespace megatron::report {
namespace {

struct TracedRank {
  double begin = 0;  // of the last iteration, in us
  double end = 0;
  std::vector<PipelineBox> boxes;
};

double number_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  constexpr double kMost = 1e18;  // fits int64_t
  const auto number = found->get<double>();
  return std::abs(number) <= kMost ? number : 0;
}

}  // namespace

bool is_trace(std::string_view text) { return text.substr(0, 4096).find("\"ph\":") != text.npos; }

void read_trace(RunHistory& history, std::string_view text) {
  std::map<int64_t, TracedRank> ranks;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    // A trace has a line for each event, and most are of kernels.
    const bool is_iteration = line.find("\"name\":\"iteration\"") != line.npos;
    if (!is_iteration && line.find("_step\"") == line.npos) continue;
    if (line.ends_with(',')) line.remove_suffix(1);
    const nlohmann::json event = try_parse_json(line);
    if (!event.is_object() || event.value("ph", nlohmann::json()) != "X" ||
        number_in(event, "tid") != 0) {
      continue;
    }
    TracedRank& rank = ranks[static_cast<int64_t>(number_in(event, "pid"))];
    const double begin = number_in(event, "ts");
    const double finish = begin + number_in(event, "dur");
    if (is_iteration) {
      if (begin >= rank.begin) {
        rank.begin = begin;
        rank.end = finish;
      }
      continue;
    }
    const auto args = event.find("args");
    const auto name = event.find("name");
    const bool is_step =
        args != event.end() && args->is_object() && name != event.end() && name->is_string();
    if (!is_step) continue;
    rank.boxes.push_back({name->get<std::string>(),
                          static_cast<int64_t>(number_in(*args, "microbatch")),
                          static_cast<int64_t>(number_in(*args, "chunk")), begin, finish});
  }
  std::erase_if(ranks, [](const auto& entry) { return entry.second.boxes.empty(); });
  if (ranks.empty()) return;
  double origin = ranks.begin()->second.begin;
  for (const auto& [number, rank] : ranks) origin = std::min(origin, rank.begin);
  for (auto& entry : ranks) {
    TracedRank& rank = entry.second;
    const auto is_outside = [&](const PipelineBox& box) {
      return box.begin < rank.begin || box.end > rank.end;
    };
    std::erase_if(rank.boxes, is_outside);
    for (PipelineBox& box : rank.boxes) {
      box.begin -= origin;
      box.end -= origin;
    }
    history.pipeline[entry.first] = std::move(rank.boxes);
  }
}

}  // namespace megatron::report
