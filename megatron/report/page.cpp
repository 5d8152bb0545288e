#include "megatron/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "megatron/core/json.h"
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

// {"n":values,"bad":not finite,"last":..,"min":..,"max":..,"mean":..,"i":[..],"v":[..]}
void append_series(std::string& json, const Series& series, size_t most_points) {
  double least = INFINITY;
  double most = -INFINITY;
  double sum = 0;
  int64_t finite = 0;
  for (const Point& point : series.points) {
    if (std::isnan(point.value)) continue;
    least = std::min(least, point.value);
    most = std::max(most, point.value);
    sum += point.value;
    ++finite;
  }
  fmt::format_to(std::back_inserter(json), "{{\"n\":{},\"bad\":{}", series.points.size(),
                 std::ssize(series.points) - finite);
  const std::pair<const char*, double> numbers[] = {{"last", series.points.back().value},
                                                    {"min", least},
                                                    {"max", most},
                                                    {"mean", sum / static_cast<double>(finite)}};
  for (const auto& [name, value] : numbers) {
    fmt::format_to(std::back_inserter(json), ",\"{}\":", name);
    append_number(json, value);
  }
  const std::vector<Point> points = thinned(series.points, most_points);
  json += ",\"i\":";
  append_iterations(json, points);
  json += ",\"v\":";
  append_values(json, points, &Point::value);
  json += '}';
}

// Time and data of some iterations; the page interpolates between them.
void append_progress(std::string& json, const std::vector<Progress>& all) {
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

}  // namespace

std::string run_json(std::string_view name, const RunHistory& history, size_t most_points) {
  const size_t count = std::max<size_t>(history.series().size(), 1);
  const size_t share = std::clamp(most_points / count, kFewestPoints, kMostPoints);
  std::string json = fmt::format("{{\"name\":{},\"restarts\":{},\"progress\":", script_string(name),
                                 history.restarts());
  append_progress(json, history.progress());
  json += ",\"settings\":{";
  for (const auto& [key, value] : history.settings) {
    if (json.back() != '{') json += ',';
    json += script_string(key) + ':' + script_string(value);
  }
  json += "},\"series\":{";
  for (const Series& series : history.series()) {
    if (series.points.empty()) continue;
    if (json.back() != '{') json += ',';
    json += script_string(series.name) + ':';
    append_series(json, series, share);
  }
  return json + "}}";
}

std::string page_of(std::string_view title, std::span<const std::string> runs) {
  std::string data = "{\"runs\":[";
  for (const std::string& run : runs) {
    if (data.back() != '[') data += ',';
    data += run;
  }
  data += "]}";
  std::string page;
  std::string_view rest = kPageText;
  for (const auto& [mark, text] :
       {std::pair<std::string_view, std::string>{"{{title}}", escaped_html(title)},
        {"{{title}}", escaped_html(title)},
        {"{{data}}", std::move(data)}}) {
    const size_t at = rest.find(mark);
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + mark.size());
  }
  return page += rest;
}

}  // namespace megatron::report
