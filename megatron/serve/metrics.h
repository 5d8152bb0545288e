#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/inference/engine.h"

namespace megatron::serve {

// A Prometheus histogram. Protected by the lock of Metrics.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void add(double value);
  // The lines of `name` with a label, e.g. model_name="gpt".
  std::string text(const std::string& name, const std::string& label) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // one more than bounds: larger values
  double sum_ = 0;
};

// The values of /metrics, under vLLM's names, so that its dashboards work. Thread safe.
class Metrics {
 public:
  void count_token();
  void count_finished(const std::string& reason);
  void count_refused();
  void add_queue_time(double seconds);
  void add_time_to_first_token(double seconds);
  void add_time_between_tokens(double seconds);
  void add_request_time(double seconds);

  // All metrics in Prometheus' text format, version 0.0.4.
  std::string text(const EngineState& state, const std::string& model_name) const;

 private:
  mutable std::mutex mutex_;
  int64_t tokens_ = 0;
  int64_t refused_ = 0;
  std::map<std::string, int64_t> finished_ = {{"stop", 0}, {"length", 0}, {"abort", 0}};
  Histogram queue_time_{{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60}};
  Histogram time_to_first_token_{{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                  1, 2.5, 5, 7.5, 10, 20, 40, 80}};
  Histogram time_between_tokens_{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                  0.3, 0.4, 0.5, 0.75, 1, 2.5}};
  Histogram request_time_{{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240}};
};

}  // namespace megatron::serve
