#include "megatron/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "megatron/report/thinned.h"

namespace megatron::report {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The series that tell time and data.
constexpr std::string_view kElapsed = "elapsed_ms_per_iteration";
constexpr std::string_view kWallTime = "wall_time";
constexpr std::string_view kSamples = "consumed_train_samples";
constexpr std::string_view kTokens = "consumed_train_tokens";
constexpr std::string_view kTokenRate = "tokens_per_second";
constexpr std::string_view kOfProgress[] = {kElapsed, kWallTime, kSamples, kTokens, kTokenRate};

// Reads the values of a series at increasing iterations.
class Cursor {
 public:
  explicit Cursor(const Series* series) : series_(series) {}
  // NaN if the series has no value there.
  double at(int64_t iteration) {
    if (series_ == nullptr) return kUnknown;
    const std::vector<Point>& points = series_->points;
    while (next_ < points.size() && points[next_].iteration < iteration) ++next_;
    const bool has_value = next_ < points.size() && points[next_].iteration == iteration;
    return has_value ? points[next_].value : kUnknown;
  }

 private:
  const Series* series_;
  size_t next_ = 0;
};

}  // namespace

void RunHistory::begin_record(int64_t iteration) {
  if (iteration_ && iteration < *iteration_) {
    ++restarts_;
    for (Series& series : series_) {
      const auto is_before = [](const Point& point, int64_t i) { return point.iteration < i; };
      series.points.erase(
          std::lower_bound(series.points.begin(), series.points.end(), iteration, is_before),
          series.points.end());
    }
  }
  iteration_ = iteration;
}

size_t RunHistory::index_of(std::string_view name) {
  const auto [entry, is_new] = indices_.try_emplace(std::string(name), series_.size());
  if (is_new) series_.push_back({std::string(name), {}});
  return entry->second;
}

void RunHistory::add(size_t series, double value) {
  std::vector<Point>& points = series_[series].points;
  if (!points.empty() && points.back().iteration >= *iteration_) return;
  points.push_back({*iteration_, std::isfinite(value) ? value : kUnknown});
}

const Series* RunHistory::find(std::string_view name) const {
  const auto found = indices_.find(std::string(name));
  return found == indices_.end() ? nullptr : &series_[found->second];
}

bool RunHistory::is_empty() const {
  return results.empty() &&
         std::ranges::all_of(series_, [](const Series& series) { return series.points.empty(); });
}

void RunHistory::thin(size_t most) {
  for (Series& series : series_) {
    const bool is_kept = std::ranges::find(kOfProgress, series.name) != std::end(kOfProgress);
    if (!is_kept && series.points.size() > 2 * most) series.points = thinned(series.points, most);
  }
}

void RunHistory::add_missing(RunHistory other) {
  for (Series& series : other.series_) {
    const size_t own = index_of(series.name);
    if (series_[own].points.empty()) series_[own].points = std::move(series.points);
  }
  settings.merge(other.settings);
  results.merge(other.results);
  if (planned_memory.empty()) planned_memory = std::move(other.planned_memory);
  if (measured_memory.empty()) measured_memory = std::move(other.measured_memory);
  if (pipeline.empty()) pipeline = std::move(other.pipeline);
}

std::vector<Progress> RunHistory::progress() const {
  const auto known = [this](std::string_view name) {
    const Series* const series = find(name);
    return series == nullptr || series->points.empty() ? nullptr : series;
  };
  const Series* const elapsed_ms = known(kElapsed);
  const Series* const wall_time = elapsed_ms == nullptr ? known(kWallTime) : nullptr;
  const Series* const sources[] = {elapsed_ms, wall_time, known(kSamples), known(kTokens),
                                   known(kTokenRate)};
  std::vector<int64_t> iterations;
  for (const Series* source : sources) {
    if (source == nullptr) continue;
    for (const Point& point : source->points) iterations.push_back(point.iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  iterations.erase(std::unique(iterations.begin(), iterations.end()), iterations.end());

  Cursor elapsed(sources[0]);
  Cursor wall(sources[1]);
  Cursor samples(sources[2]);
  Cursor tokens(sources[3]);
  Cursor rate(sources[4]);
  std::vector<Progress> progress;
  progress.reserve(iterations.size());
  double seconds = 0;
  double counted = 0;  // tokens of the iterations so far
  int64_t timed = 0;   // the last iteration with a time
  for (const int64_t iteration : iterations) {
    Progress now = {iteration, samples.at(iteration), tokens.at(iteration), kUnknown};
    if (wall_time != nullptr) now.seconds = wall.at(iteration) - wall_time->points[0].value;
    const double ms = elapsed.at(iteration);
    if (!std::isnan(ms)) {
      int64_t steps = iteration - timed;
      // A continued run begins late: its first record has as many iterations as the second.
      const bool is_first = timed == 0;
      if (is_first && elapsed_ms->points.size() > 1) {
        steps = std::min(steps, elapsed_ms->points[1].iteration - iteration);
      }
      timed = iteration;
      const double own = ms / 1000 * static_cast<double>(steps);
      now.seconds = seconds += own;
      const double own_tokens = rate.at(iteration) * own;
      // Iterations before the first record have as many each as its own.
      const bool is_late = is_first && steps < iteration;
      counted += is_late ? own_tokens / static_cast<double>(steps) * static_cast<double>(iteration)
                         : own_tokens;
      if (std::isnan(now.tokens)) now.tokens = counted;
    }
    progress.push_back(now);
  }
  return progress;
}

}  // namespace megatron::report
