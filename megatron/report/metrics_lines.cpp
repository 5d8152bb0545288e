#include "megatron/report/metrics_lines.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "megatron/core/json.h"

namespace megatron::report {
namespace {

constexpr std::string_view kIteration = "iteration";
constexpr double kNull = std::numeric_limits<double>::quiet_NaN();

// Reads records fast: most lines have the keys of the line before, in the same order.
class RecordReader {
 public:
  explicit RecordReader(RunHistory& history) : history_(history) {}

  bool read(std::string_view line) {
    values_.clear();
    iteration_.reset();
    if (!scan(line) && !parse(line)) return false;
    if (!iteration_) return false;
    history_.begin_record(*iteration_);
    for (const auto& [series, value] : values_) history_.add(series, value);
    return true;
  }

 private:
  // A flat object of numbers without escapes in its keys. False for any other text.
  bool scan(std::string_view line) {
    const char* at = line.data();
    const char* const end = at + line.size();
    const auto skip_blanks = [&] {
      while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
    };
    const auto take = [&](char c) {
      skip_blanks();
      if (at == end || *at != c) return false;
      ++at;
      return true;
    };
    if (!take('{')) return false;
    size_t position = 0;
    do {
      if (!take('"')) return false;
      const char* const close = std::find(at, end, '"');
      const std::string_view key(at, static_cast<size_t>(close - at));
      if (close == end || key.find('\\') != key.npos) return false;
      at = close + 1;
      if (!take(':')) return false;
      skip_blanks();
      double value = kNull;
      if (std::string_view(at, static_cast<size_t>(end - at)).starts_with("null")) {
        at += 4;
      } else {
        const auto [rest, error] = std::from_chars(at, end, value);
        const char first = at == end ? '\0' : *at;
        if (error != std::errc() || (first != '-' && (first < '0' || first > '9'))) return false;
        at = rest;
      }
      take_value(key, value, position++);
    } while (take(','));
    if (!take('}')) return false;
    skip_blanks();
    return at == end;
  }

  // Any object: the numbers in it.
  bool parse(std::string_view line) {
    values_.clear();
    iteration_.reset();
    const nlohmann::json object = try_parse_json(line, {.max_values = int64_t{1} << 20});
    if (!object.is_object()) return false;
    size_t position = 0;
    for (const auto& [key, value] : object.items()) {
      if (!value.is_number() && !value.is_null()) continue;
      take_value(key, value.is_null() ? kNull : value.get<double>(), position++);
    }
    return true;
  }

  void take_value(std::string_view key, double value, size_t position) {
    if (key == kIteration) {
      const bool is_possible = value >= 0 && value <= static_cast<double>(kMostIterations);
      if (is_possible) iteration_ = static_cast<int64_t>(value);
    }
    if (position >= order_.size()) order_.resize(position + 1, kNoSeries);
    if (key == kIteration) return;
    size_t& series = order_[position];
    if (series == kNoSeries || history_.series()[series].name != key) {
      series = history_.index_of(key);
    }
    values_.emplace_back(series, value);
  }

  static constexpr size_t kNoSeries = static_cast<size_t>(-1);

  RunHistory& history_;
  std::vector<size_t> order_;  // the series of the n-th key of the line before
  std::vector<std::pair<size_t, double>> values_;
  std::optional<int64_t> iteration_;
};

}  // namespace

int64_t read_metrics(RunHistory& history, std::string_view text) {
  RecordReader reader(history);
  int64_t skipped = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool is_blank = line.find_first_not_of(" \t\r") == line.npos;
    if (!is_blank && !reader.read(line)) ++skipped;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return skipped;
}

}  // namespace megatron::report
