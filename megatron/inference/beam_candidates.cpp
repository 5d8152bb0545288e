#include "megatron/inference/beam_candidates.h"

#include <algorithm>

#include "megatron/kernels/draw.h"

namespace megatron {

std::vector<BeamCandidate> best_candidates(const BeamSearch& beams,
                                           std::span<const std::span<const float>> rows,
                                           int64_t vocab_size) {
  std::vector<BeamCandidate> candidates;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto beam = static_cast<int64_t>(i);
    const std::span<const float> row = rows[i];
    const double before = beams.log_probability(beam) - kernels::cpu::log_sum_exp(row);
    const auto drawable = row.first(static_cast<size_t>(vocab_size));
    for (const int64_t id : kernels::cpu::largest_logits(drawable, beams.num_candidates())) {
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
