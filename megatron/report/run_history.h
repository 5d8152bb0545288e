#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// The numbers that a training run left in its logs.
namespace megatron::report {

// The largest iteration that readers accept: a larger one is damage.
inline constexpr int64_t kMostIterations = 1'000'000'000'000;

struct Point {
  int64_t iteration = 0;
  double value = 0;  // NaN: the log says that it was not finite
};

// One number of the log over the iterations, which increase.
struct Series {
  std::string name;  // as in docs/formats/metrics.md, whatever log it comes from
  std::vector<Point> points;
};

// A step of a microbatch on a rank.
struct PipelineBox {
  std::string name;  // "forward_step", "backward_step"
  int64_t microbatch = 0;
  int64_t chunk = 0;  // of the rank's chunks
  double begin = 0;   // in us
  double end = 0;
};

// Time and data at an iteration; NaN where the log does not tell.
struct Progress {
  int64_t iteration = 0;
  double samples = 0;
  double tokens = 0;
  double seconds = 0;  // of training, since the start
};

class RunHistory {
 public:
  // Begins a record of the log. A smaller iteration than that of the last record means that the run
  // went back to a checkpoint: points from `iteration` on are dropped.
  // REQUIRES: 0 <= iteration <= kMostIterations.
  void begin_record(int64_t iteration);
  // The index of a series, which is new if there is none of that name.
  size_t index_of(std::string_view name);
  // Adds a value at the record's iteration; of several values the first counts.
  void add(size_t series, double value);
  void add(std::string_view name, double value) { add(index_of(name), value); }

  const std::vector<Series>& series() const { return series_; }
  const Series* find(std::string_view name) const;
  bool is_empty() const;  // no series has a point, and there are no results
  int64_t restarts() const { return restarts_; }

  // Time and data at each iteration that has any of elapsed_ms_per_iteration, wall_time,
  // consumed_train_samples, consumed_train_tokens and tokens_per_second. The time of an iteration
  // is that of all since the point before; without such times, wall_time (in seconds) counts.
  // Tokens are summed from the rate if they are not in the log.
  std::vector<Progress> progress() const;

  // Thins every series of more than twice `most` points; those that progress() reads keep all.
  // REQUIRES: most is at least 5.
  void thin(size_t most);

  // Adds the series that only `other` has, and what else is missing here.
  void add_missing(RunHistory other);

  std::map<std::string, std::string> settings;    // the dump of the arguments
  std::map<std::string, double> planned_memory;   // bytes at the peak by category
  std::map<std::string, double> measured_memory;  // bytes: "allocated", "max allocated", ...
  std::map<std::string, std::map<std::string, double>> results;  // of `megatron evaluate`, by task
  std::map<int64_t, std::vector<PipelineBox>> pipeline;          // an iteration of each traced rank

 private:
  std::vector<Series> series_;
  std::unordered_map<std::string, size_t> indices_;
  std::optional<int64_t> iteration_;
  int64_t restarts_ = 0;
};

}  // namespace megatron::report
