#include "megatron/inference/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace megatron {
namespace {

bool is_better(const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; }

}  // namespace

BeamSearch::BeamSearch(const BeamOptions& options, std::vector<int32_t> stop_tokens,
                       int64_t max_new_tokens)
    : options_(options), stop_tokens_(std::move(stop_tokens)), max_new_tokens_(max_new_tokens) {}

double BeamSearch::log_probability(int64_t beam) const {
  return beams_[static_cast<size_t>(beam)].log_probability;
}

int32_t BeamSearch::last_token(int64_t beam) const {
  return beams_[static_cast<size_t>(beam)].tokens.back();
}

double BeamSearch::score_of(double log_probability, int64_t length) const {
  return log_probability / std::pow(static_cast<double>(length), options_.length_penalty);
}

void BeamSearch::add(Hypothesis hypothesis) {
  finished_.push_back(std::move(hypothesis));
  std::stable_sort(finished_.begin(), finished_.end(), is_better);
  if (static_cast<int64_t>(finished_.size()) > options_.width) finished_.pop_back();
}

// True if there are `width` finished hypotheses and no live beam would beat one if it ended now.
bool BeamSearch::cannot_improve(double best_log_probability) const {
  if (static_cast<int64_t>(finished_.size()) < options_.width) return false;
  const auto length = static_cast<int64_t>(beams_.front().tokens.size()) + 1;
  return finished_.back().score >= score_of(best_log_probability, length);
}

std::vector<int64_t> BeamSearch::advance(std::span<const BeamCandidate> candidates) {
  std::vector<Beam> next;
  std::vector<int64_t> parents;
  const auto length = static_cast<int64_t>(beams_.front().tokens.size()) + 1;
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    const BeamCandidate& candidate = candidates[rank];
    Beam beam = beams_[static_cast<size_t>(candidate.beam)];
    beam.log_probability = candidate.log_probability;
    const bool stops =
        std::find(stop_tokens_.begin(), stop_tokens_.end(), candidate.token) != stop_tokens_.end();
    if (stops) {
      if (static_cast<int64_t>(rank) >= options_.width) continue;
      add({beam.tokens, score_of(beam.log_probability, length), true});
    } else {
      beam.tokens.push_back(candidate.token);
      next.push_back(std::move(beam));
      parents.push_back(candidate.beam);
    }
    if (static_cast<int64_t>(next.size()) == options_.width) break;
  }
  is_done_ = next.empty() || cannot_improve(candidates.front().log_probability);
  beams_ = std::move(next);
  if (!is_done_ && length == max_new_tokens_) {
    for (const Beam& beam : beams_) {
      add({beam.tokens, score_of(beam.log_probability, length), false});
    }
    is_done_ = true;
  }
  return is_done_ ? std::vector<int64_t>() : parents;
}

std::vector<Hypothesis> BeamSearch::take_result() { return std::move(finished_); }

}  // namespace megatron
