#include "megatron/training/curriculum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace megatron {
namespace {

int64_t root_length(const CurriculumConfig& c, int64_t iteration) {
  const double done = std::pow(
      static_cast<double>(iteration) / static_cast<double>(c.num_iterations), 1.0 / c.degree);
  const double length = std::floor(done * static_cast<double>(c.max_length - c.min_length) +
                                   static_cast<double>(c.min_length));
  if (length >= static_cast<double>(c.max_length + c.length_step)) return c.max_length;
  const auto whole = static_cast<int64_t>(length);
  return std::min(c.max_length, whole - whole % c.length_step);
}

// Later than any run ends.
constexpr int64_t kNever = int64_t{1} << 50;

// The first iteration after `iteration` with another length; kRoot's lengths never fall.
int64_t next_change(const CurriculumConfig& c, int64_t iteration) {
  const int64_t length = root_length(c, iteration);
  int64_t before = iteration;
  int64_t reach = 1;
  while (root_length(c, before + reach) == length) {
    before += reach;
    reach *= 2;
    if (before + reach > kNever) return kNever;
  }
  int64_t after = before + reach;
  while (after - before > 1) {
    const int64_t middle = before + (after - before) / 2;
    (root_length(c, middle) == length ? before : after) = middle;
  }
  return after;
}

bool rises(const std::vector<int64_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) ==
         numbers.end();
}

std::vector<std::string> root_problems(const CurriculumConfig& c) {
  std::vector<std::string> found;
  if (c.num_iterations < 1) {
    found.push_back(fmt::format("curriculum_learning: total_curriculum_step {} must be at least 1",
                                c.num_iterations));
  }
  if (c.length_step < 1 || c.length_step > c.min_length) {
    found.push_back(fmt::format(
        "curriculum_learning: difficulty_step {} must be between 1 and min_difficulty {}, the "
        "shortest length",
        c.length_step, c.min_length));
  }
  if (!(c.degree > 0)) {
    found.push_back(fmt::format("curriculum_learning: root_degree {} must be above 0", c.degree));
  }
  return found;
}

std::vector<std::string> discrete_problems(const CurriculumConfig& c) {
  if (c.lengths.empty() || c.lengths.size() != c.last_iterations.size() + 1 || !rises(c.lengths) ||
      !rises(c.last_iterations) || c.lengths.front() < 1) {
    return {fmt::format(
        "curriculum_learning: difficulty [{}] must be rising lengths, and max_step [{}] the rising "
        "last iterations of all but the last",
        fmt::join(c.lengths, ", "), fmt::join(c.last_iterations, ", "))};
  }
  return {};
}

// Lengths of which all others are multiples or sums.
std::vector<int64_t> basic_lengths(const CurriculumConfig& c) {
  if (c.schedule == CurriculumSchedule::kDiscrete) return c.lengths;
  return {c.length_step, c.max_length};
}

}  // namespace

std::vector<std::string> problems(const CurriculumConfig& c, int64_t seq_length, int64_t parts) {
  if (!c.is_on()) return {};
  const bool is_root = c.schedule == CurriculumSchedule::kRoot;
  std::vector<std::string> found = is_root ? root_problems(c) : discrete_problems(c);
  if (is_root && (c.min_length < 1 || c.max_length < c.min_length)) {
    found.push_back(fmt::format(
        "curriculum_learning: min_difficulty {} and max_difficulty {} must be lengths, the second "
        "at least the first",
        c.min_length, c.max_length));
  }
  if (!found.empty()) return found;
  const int64_t longest = is_root ? c.max_length : c.lengths.back();
  if (longest > seq_length) {
    found.push_back(
        fmt::format("curriculum_learning: the greatest length {} must not exceed --seq-length {}",
                    longest, seq_length));
  }
  for (const int64_t length : basic_lengths(c)) {
    if (length % parts == 0) continue;
    found.push_back(fmt::format(
        "curriculum_learning: {} is not a multiple of {}, into which ranks divide a sequence "
        "(--sequence-parallel, --context-parallel-size); use multiples",
        length, parts));
  }
  return found;
}

Curriculum::Curriculum(const CurriculumConfig& config) {
  if (config.schedule == CurriculumSchedule::kDiscrete) {
    int64_t first = 1;
    for (size_t i = 0; i < config.lengths.size(); ++i) {
      const bool is_last = i == config.last_iterations.size();
      if (is_last || config.last_iterations[i] >= first) add(first, config.lengths[i]);
      if (!is_last) first = std::max(first, config.last_iterations[i] + 1);
    }
    return;
  }
  for (int64_t first = 1; first < kNever; first = next_change(config, first)) {
    add(first, root_length(config, first));
    if (stages_.back().length == config.max_length) return;
  }
}

void Curriculum::add(int64_t first_iteration, int64_t length) {
  const int64_t before = stages_.empty() ? 0 : tokens_after(first_iteration - 1);
  stages_.push_back({first_iteration, length, before});
}

int64_t Curriculum::length_at(int64_t iteration) const {
  const auto after =
      std::upper_bound(stages_.begin(), stages_.end(), std::max<int64_t>(iteration, 1),
                       [](int64_t at, const Stage& stage) { return at < stage.first_iteration; });
  return (after - 1)->length;
}

int64_t Curriculum::tokens_after(int64_t iterations) const {
  if (iterations < 1) return 0;
  const auto after =
      std::upper_bound(stages_.begin(), stages_.end(), iterations,
                       [](int64_t at, const Stage& stage) { return at < stage.first_iteration; });
  const Stage& stage = *(after - 1);
  return stage.tokens_before + (iterations - stage.first_iteration + 1) * stage.length;
}

int64_t Curriculum::iterations_of(int64_t tokens) const {
  if (tokens < 1) return 0;
  const auto after =
      std::lower_bound(stages_.begin(), stages_.end(), tokens,
                       [](const Stage& stage, int64_t goal) { return stage.tokens_before < goal; });
  const Stage& stage = *(after - 1);
  return stage.first_iteration - 1 +
         (tokens - stage.tokens_before + stage.length - 1) / stage.length;
}

}  // namespace megatron
