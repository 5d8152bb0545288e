#include "megatron/inference/beam_candidates.h"

#include <algorithm>
#include <numeric>

#include "megatron/inference/sampler.h"

namespace megatron {

std::vector<int64_t> largest(std::span<const float> logits, int64_t count) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto middle = order.begin() + std::min<int64_t>(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), middle, order.end(), [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.erase(middle, order.end());
  return order;
}

std::vector<BeamCandidate> best_candidates(const BeamSearch& beams,
                                           std::span<const std::span<const float>> rows,
                                           int64_t vocab_size) {
  std::vector<BeamCandidate> candidates;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto beam = static_cast<int64_t>(i);
    const std::span<const float> row = rows[i];
    const double before = beams.log_probability(beam) - log_sum_exp(row);
    const auto drawable = row.first(static_cast<size_t>(vocab_size));
    for (const int64_t id : largest(drawable, beams.num_candidates())) {
      candidates.push_back({beam, static_cast<int32_t>(id), before + row[static_cast<size_t>(id)]});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const BeamCandidate& a, const BeamCandidate& b) {
                     return a.log_probability > b.log_probability;
                   });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(beams.num_candidates())));
  return candidates;
}

}  // namespace megatron
