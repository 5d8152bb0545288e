#include "megatron/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/core/json.h"
#include "megatron/core/number_text.h"
#include "megatron/report/page_text.h"
#include "megatron/report/thinned.h"

namespace megatron::report {
namespace {

constexpr size_t kMostPoints = 3000;  // of a curve: a screen has no more columns
constexpr size_t kFewestPoints = 20;
constexpr size_t kProgressPoints = 200;

// A string of JSON inside a script element: "</script>" in it must not end the element.
std::string script_string(std::string_view text) {
  std::string json;
  for (const char c : dump_json(nlohmann::json(text))) {
    if (c == '<') {
      json += "\\u003c";
    } else {
      json += c;
    }
  }
  return json;
}

std::string escaped_html(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

// Six digits, as in the log; null if it is not finite.
void append_number(std::string& json, double value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(json), "{:.6g}", value);
  } else {
    json += "null";
  }
}

// "[1,10,10]": the first iteration, then differences.
template <class Items>
void append_iterations(std::string& json, const Items& items) {
  json += '[';
  int64_t before = 0;
  for (const auto& item : items) {
    if (json.back() != '[') json += ',';
    fmt::format_to(std::back_inserter(json), "{}", item.iteration - before);
    before = item.iteration;
  }
  json += ']';
}

template <class Items, class Member>
void append_values(std::string& json, const Items& items, Member member) {
  json += '[';
  for (const auto& item : items) {
    if (json.back() != '[') json += ',';
    append_number(json, item.*member);
  }
  json += ']';
}

// The points after an iteration.
std::span<const Point> points_after(const Series& series, int64_t iteration) {
  const auto begin = std::ranges::upper_bound(series.points, iteration, {}, &Point::iteration);
  return {begin, series.points.end()};
}

// {"n":values,"bad":not
// finite,"minAt":iteration,"last":..,"min":..,"max":..,"mean":..,"i":[..],"v":[..]}
void append_series(std::string& json, std::span<const Point> all, size_t most_points) {
  double least = std::numeric_limits<double>::infinity();
  int64_t least_at = 0;
  double most = -least;
  double sum = 0;
  int64_t finite = 0;
  for (const Point& point : all) {
    if (std::isnan(point.value)) continue;
    if (point.value < least) {
      least = point.value;
      least_at = point.iteration;
    }
    most = std::max(most, point.value);
    sum += point.value;
    ++finite;
  }
  fmt::format_to(std::back_inserter(json), "{{\"n\":{},\"bad\":{},\"minAt\":{}", all.size(),
                 std::ssize(all) - finite, least_at);
  const std::pair<const char*, double> numbers[] = {{"last", all.back().value},
                                                    {"min", least},
                                                    {"max", most},
                                                    {"mean", sum / static_cast<double>(finite)}};
  for (const auto& [name, value] : numbers) {
    fmt::format_to(std::back_inserter(json), ",\"{}\":", name);
    append_number(json, value);
  }
  const std::vector<Point> points = thinned(all, most_points);
  json += ",\"i\":";
  append_iterations(json, points);
  json += ",\"v\":";
  append_values(json, points, &Point::value);
  json += '}';
}

// Time and data of some iterations; the page interpolates between them.
void append_progress(std::string& json, std::span<const Progress> all) {
  std::vector<Progress> rows;
  const size_t count = std::min(all.size(), kProgressPoints);
  rows.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    rows.push_back(all[count == 1 ? 0 : i * (all.size() - 1) / (count - 1)]);
  }
  json += "{\"i\":";
  append_iterations(json, rows);
  json += ",\"samples\":";
  append_values(json, rows, &Progress::samples);
  json += ",\"tokens\":";
  append_values(json, rows, &Progress::tokens);
  json += ",\"seconds\":";
  append_values(json, rows, &Progress::seconds);
  json += '}';
}

// {"name":value}
void append_map(std::string& json, const std::map<std::string, double>& values) {
  json += '{';
  for (const auto& [name, value] : values) {
    if (json.back() != '{') json += ',';
    json += script_string(name) + ':';
    append_number(json, value);
  }
  json += '}';
}

// The layer and the expert of "moe/load_layer_3_expert_5" (docs/formats/metrics.md).
std::optional<std::pair<int64_t, int64_t>> loaded_expert(std::string_view name) {
  constexpr std::string_view kLayer = "moe/load_layer_";
  constexpr std::string_view kExpert = "_expert_";
  if (!name.starts_with(kLayer)) return std::nullopt;
  name.remove_prefix(kLayer.size());
  const size_t at = name.find(kExpert);
  if (at == name.npos) return std::nullopt;
  const std::optional<int64_t> layer = integer_of(name.substr(0, at));
  const std::optional<int64_t> expert = integer_of(name.substr(at + kExpert.size()));
  if (!layer || !expert) return std::nullopt;
  return std::pair(*layer, *expert);
}

using ExpertLoads = std::map<std::pair<int64_t, int64_t>, const Series*>;

// {"layers":[0,1],"experts":8,"i":[..],"most":[[..],[..]],"last":[[..],[..]]}: the iterations of
// columns, the largest load of each layer in each column, and the load of each expert in the last
// tenth of the run, as means. A table of more than `most_cells` is left out.
void append_experts(std::string& json, const ExpertLoads& loads, size_t most_cells) {
  std::map<int64_t, std::vector<const Series*>> layers;
  size_t experts = 0;
  for (const auto& [place, series] : loads) {
    std::vector<const Series*>& own = layers[place.first];
    own.push_back(series);
    experts = std::max(experts, own.size());
  }
  const std::vector<Point>& all = loads.begin()->second->points;
  const size_t columns =
      std::min({all.size(), size_t{60}, std::max<size_t>(most_cells / layers.size(), 2)});
  std::string numbers = "[";
  std::string most = "[";
  std::string last = "[";
  for (const auto& [layer, own] : layers) {
    if (numbers.back() != '[') numbers += ',', most += ',', last += ',';
    numbers += std::to_string(layer);
    std::vector<double> largest;
    largest.reserve(columns);
    std::vector<double> at_end;
    at_end.reserve(own.size());
    for (size_t column = 0; column < columns; ++column) {
      const size_t begin = column * all.size() / columns;
      const size_t end = (column + 1) * all.size() / columns;
      double sum = 0;
      for (size_t i = begin; i < end; ++i) {
        double peak = 0;
        for (const Series* series : own) {
          if (i < series->points.size()) peak = std::max(peak, series->points[i].value);
        }
        sum += peak;
      }
      largest.push_back(sum / static_cast<double>(end - begin));
    }
    for (const Series* series : own) {
      const size_t count = series->points.size();
      const size_t begin = count - (count + 9) / 10;
      double sum = 0;
      for (size_t i = begin; i < count; ++i) sum += series->points[i].value;
      at_end.push_back(sum / static_cast<double>(count - begin));
    }
    const auto append_row = [](std::string& table, const std::vector<double>& row) {
      table += '[';
      for (const double value : row) {
        if (table.back() != '[') table += ',';
        fmt::format_to(std::back_inserter(table), "{:.3g}", std::isfinite(value) ? value : 0);
      }
      table += ']';
    };
    append_row(most, largest);
    if (layers.size() * experts <= most_cells) append_row(last, at_end);
  }
  if (layers.size() * experts > most_cells) last = "[";
  std::vector<Point> ends;
  ends.reserve(columns);
  for (size_t column = 0; column < columns; ++column) {
    ends.push_back(all[(column + 1) * all.size() / columns - 1]);
  }
  fmt::format_to(std::back_inserter(json),
                 ",\"experts\":{{\"layers\":{}],\"experts\":{},\"i\":", numbers, experts);
  append_iterations(json, ends);
  json += ",\"most\":" + most + "],\"last\":" + last + "]}";
}

// {"ranks":[{"rank":0,"boxes":[[kind,microbatch,chunk,begin,duration],..]}],"left":ranks}: times in
// us; kind is the index of the name in "names". Ranks beyond the first `most_boxes` are left out.
void append_pipeline(std::string& json, const RunHistory& history, size_t most_boxes) {
  std::vector<std::string> names;
  std::string ranks = "[";
  size_t boxes = 0;
  int64_t left = 0;
  for (const auto& [rank, own] : history.pipeline) {
    boxes += own.size();
    if (boxes > most_boxes && ranks.size() > 1) {
      ++left;
      continue;
    }
    if (ranks.back() != '[') ranks += ',';
    fmt::format_to(std::back_inserter(ranks), "{{\"rank\":{},\"boxes\":[", rank);
    for (const PipelineBox& box : own) {
      const auto found = std::ranges::find(names, box.name);
      const auto kind = found - names.begin();
      if (found == names.end()) names.push_back(box.name);
      if (ranks.back() != '[') ranks += ',';
      fmt::format_to(std::back_inserter(ranks), "[{},{},{},{:.0f},{:.0f}]", kind, box.microbatch,
                     box.chunk, box.begin, box.end - box.begin);
    }
    ranks += "]}";
  }
  json += ",\"pipeline\":{\"names\":[";
  for (const std::string& name : names) {
    if (json.back() != '[') json += ',';
    json += script_string(name);
  }
  fmt::format_to(std::back_inserter(json), "],\"left\":{},\"ranks\":{}]}}", left, ranks);
}

}  // namespace

std::string run_json(std::string_view name, const RunHistory& history, size_t most_points,
                     int64_t after) {
  ExpertLoads loads;
  std::vector<const Series*> curves;
  for (const Series& series : history.series()) {
    if (series.points.empty()) continue;
    if (const auto place = loaded_expert(series.name)) {
      loads.emplace(*place, &series);
    } else if (!points_after(series, after).empty()) {
      curves.push_back(&series);
    }
  }
  std::string json =
      fmt::format("{{\"name\":{},\"restarts\":{}", script_string(name), history.restarts());
  const size_t before = json.size();
  if (!loads.empty()) append_experts(json, loads, most_points / 4);
  if (!history.pipeline.empty()) append_pipeline(json, history, most_points / 4);
  // These take the place of points of 12 bytes.
  most_points -= std::min(most_points, (json.size() - before) / 12);
  const size_t share =
      std::clamp(most_points / std::max<size_t>(curves.size(), 1), kFewestPoints, kMostPoints);
  json += ",\"progress\":";
  const std::vector<Progress> progress = history.progress();
  append_progress(
      json, {std::ranges::upper_bound(progress, after, {}, &Progress::iteration), progress.end()});
  json += ",\"plannedMemory\":";
  append_map(json, history.planned_memory);
  json += ",\"measuredMemory\":";
  append_map(json, history.measured_memory);
  json += ",\"results\":{";
  for (const auto& [task, values] : history.results) {
    if (json.back() != '{') json += ',';
    json += script_string(task) + ':';
    append_map(json, values);
  }
  json += "},\"settings\":{";
  for (const auto& [key, value] : history.settings) {
    if (json.back() != '{') json += ',';
    json += script_string(key) + ':' + script_string(value);
  }
  json += "},\"series\":{";
  for (const Series* series : curves) {
    if (json.back() != '{') json += ',';
    json += script_string(series->name) + ':';
    append_series(json, points_after(*series, after), share);
  }
  return json + "}}";
}

namespace {

// The page as a file: it may do nothing but run its own script. A server sends its rules as a
// header.
constexpr const char* kFilePolicy =
    "<meta http-equiv=\"Content-Security-Policy\"\n  content=\"default-src 'none'; style-src "
    "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n";

std::string filled_page(std::string_view title, std::string_view policy, std::string_view data) {
  const std::string shown = escaped_html(title);
  std::string page;
  std::string_view rest = kPageText;
  for (const auto& [mark, text] :
       {std::pair<std::string_view, std::string_view>{"{{policy}}\n", policy},
        {"{{title}}", shown},
        {"{{title}}", shown},
        {"{{data}}", data}}) {
    const size_t at = rest.find(mark);
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + mark.size());
  }
  return page += rest;
}

}  // namespace

std::string page_of(std::string_view title, std::span<const std::string> runs) {
  std::string data = "{\"runs\":[";
  for (const std::string& run : runs) {
    if (data.back() != '[') data += ',';
    data += run;
  }
  return filled_page(title, kFilePolicy, data + "]}");
}

std::string live_page_of(std::string_view title) {
  return filled_page(title, "", R"({"runs":[],"live":"run.json"})");
}

}  // namespace megatron::report
