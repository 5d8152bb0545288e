#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// The words of --train-step-args: key=value. Functions throw ConfigError for a value of another
// type, and the constructor for a word without '='.
class TrainStepArgs {
 public:
  TrainStepArgs() = default;
  explicit TrainStepArgs(std::span<const std::string> words);

  // The value of a key, or the default if the key was not given.
  std::string text(const std::string& key, std::string fallback) const;
  double number(const std::string& key, double fallback) const;
  int64_t integer(const std::string& key, int64_t fallback) const;
  // "7,11,13"
  std::vector<int64_t> integers(const std::string& key, std::vector<int64_t> fallback) const;

  // Throws ConfigError if there are keys that were never read.
  void expect_all_used() const;

 private:
  const std::string* find(const std::string& key) const;

  std::map<std::string, std::string> values_;
  mutable std::set<std::string> asked_;
};

}  // namespace megatron
