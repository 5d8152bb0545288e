#include "megatron/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace megatron::report {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

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
  const Series* const sources[] = {find("elapsed_ms_per_iteration"), find("consumed_train_samples"),
                                   find("consumed_train_tokens"), find("tokens_per_second"),
                                   find("wall_time")};
  std::vector<int64_t> iterations;
  for (const Series* source : sources) {
    if (source == nullptr) continue;
    for (const Point& point : source->points) iterations.push_back(point.iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  iterations.erase(std::unique(iterations.begin(), iterations.end()), iterations.end());

  Cursor elapsed(sources[0]);
  Cursor samples(sources[1]);
  Cursor tokens(sources[2]);
  Cursor rate(sources[3]);
  Cursor wall(sources[4]);
  const double start =
      sources[4] == nullptr || sources[4]->points.empty() ? kUnknown : sources[4]->points[0].value;
  std::vector<Progress> progress;
  progress.reserve(iterations.size());
  Progress before = {.seconds = sources[0] == nullptr ? kUnknown : 0};
  for (size_t i = 0; i < iterations.size(); ++i) {
    const int64_t iteration = iterations[i];
    int64_t steps = iteration - before.iteration;
    // A continued run begins late: its first record has as many iterations as the second.
    if (i == 0 && iterations.size() > 1) steps = std::min(steps, iterations[1] - iteration);
    const double ms = elapsed.at(iteration);
    const double seconds = std::isnan(ms) ? 0 : ms / 1000 * static_cast<double>(steps);
    const bool has_times = sources[0] != nullptr;
    Progress now = {iteration, samples.at(iteration), tokens.at(iteration),
                    has_times ? before.seconds + seconds : wall.at(iteration) - start};
    const double counted = rate.at(iteration) * seconds;
    if (std::isnan(now.tokens) && i == 0 && steps < iteration) {
      // Those before the first record: as many for a sample as in this record.
      const double own_samples =
          now.samples * static_cast<double>(steps) / static_cast<double>(iteration);
      now.tokens = counted / own_samples * now.samples;
    } else if (std::isnan(now.tokens)) {
      now.tokens = before.tokens + counted;
    }
    progress.push_back(now);
    before = now;
  }
  return progress;
}

}  // namespace megatron::report
