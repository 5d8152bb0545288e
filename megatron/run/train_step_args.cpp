#include "megatron/run/train_step_args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron {
namespace {

constexpr const char* kTrainStepFlag = "--train-step-args";

int64_t integer_in(const std::string& key, const std::string& word) {
  if (const auto number = integer_of(word)) return *number;
  throw ConfigError(fmt::format("{} {}={}: must be an integer", kTrainStepFlag, key, word));
}

}  // namespace

TrainStepArgs::TrainStepArgs(std::span<const std::string> words) {
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ConfigError(fmt::format("{} {}: must have the form key=value", kTrainStepFlag, word));
    }
    values_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

const std::string* TrainStepArgs::find(const std::string& key) const {
  asked_.insert(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::string TrainStepArgs::text(const std::string& key, std::string fallback) const {
  const std::string* value = find(key);
  return value == nullptr ? std::move(fallback) : *value;
}

double TrainStepArgs::number(const std::string& key, double fallback) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  if (const auto number = number_of(*value)) return *number;
  throw ConfigError(fmt::format("{} {}={}: must be a number", kTrainStepFlag, key, *value));
}

int64_t TrainStepArgs::integer(const std::string& key, int64_t fallback) const {
  const std::string* value = find(key);
  return value == nullptr ? fallback : integer_in(key, *value);
}

std::vector<int64_t> TrainStepArgs::integers(const std::string& key,
                                             std::vector<int64_t> fallback) const {
  const std::string* value = find(key);
  if (value == nullptr) return fallback;
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= value->size();) {
    const size_t end = std::min(value->find(',', begin), value->size());
    numbers.push_back(integer_in(key, value->substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

void TrainStepArgs::expect_all_used() const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : values_) {
    if (!asked_.contains(key)) unknown.push_back(key);
  }
  if (unknown.empty()) return;
  throw ConfigError(
      fmt::format("{}: the library of --train-step does not know {}; it knows {}", kTrainStepFlag,
                  fmt::join(unknown, ", "),
                  asked_.empty() ? "none" : fmt::format("{}", fmt::join(asked_, ", "))));
}

}  // namespace megatron
