#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/inference/beam_search.h"

namespace megatron {

// The candidates of a step of a beam search, best first: tokens below vocab_size behind the beams,
// whose logits are rows [beam]. Fewer than num_candidates() for a small vocabulary.
std::vector<BeamCandidate> best_candidates(const BeamSearch& beams,
                                           std::span<const std::span<const float>> rows,
                                           int64_t vocab_size);

}  // namespace megatron
