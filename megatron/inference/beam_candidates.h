#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/inference/beam_search.h"

namespace megatron {

// The candidates of a step of a beam search, best first: continuations of the beams by tokens below
// vocab_size, from rows[beam], the beams' logits. Fewer than num_candidates() for a small
// vocabulary.
std::vector<BeamCandidate> best_candidates(const BeamSearch& beams,
                                           std::span<const std::span<const float>> rows,
                                           int64_t vocab_size);

}  // namespace megatron
