#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

struct BeamOptions {
  int64_t width = 0;            // beams, at least 1
  double length_penalty = 1.0;  // score = sum of log-probabilities / length^penalty
};

// A finished beam.
struct Hypothesis {
  std::vector<int32_t> tokens = {};  // without the prompt and the stop token
  double score = 0;
  bool is_stopped = false;  // by a stop token, not by length
};

// A token that may continue a beam.
struct BeamCandidate {
  int64_t beam = 0;
  int32_t token = 0;
  double log_probability = 0;  // of all tokens of the beam and this one
};

// The state of a beam search by Megatron-LM's rules: which candidates continue, which are finished,
// and when to stop. Independent of any model.
class BeamSearch {
 public:
  BeamSearch(const BeamOptions& options, std::vector<int32_t> stop_tokens, int64_t max_new_tokens);

  // Live beams: 1 before the first step, whose beams would all be alike.
  int64_t num_beams() const { return static_cast<int64_t>(beams_.size()); }
  // Sum of the log-probabilities of a beam's tokens.
  double log_probability(int64_t beam) const;
  // Candidates per step, best first: two per beam, so that enough continue if some stop.
  int64_t num_candidates() const { return 2 * options_.width; }

  // Takes the best candidates of a step. Returns the parent of each live beam; nothing when the
  // search is done.
  std::vector<int64_t> advance(std::span<const BeamCandidate> candidates);
  bool is_done() const { return is_done_; }
  // The last token of a beam.
  int32_t last_token(int64_t beam) const;

  // At most `width` hypotheses, best score first. REQUIRES: is_done().
  std::vector<Hypothesis> take_result();

 private:
  struct Beam {
    std::vector<int32_t> tokens = {};
    double log_probability = 0;
  };
  double score_of(double log_probability, int64_t length) const;
  void add(Hypothesis hypothesis);
  bool cannot_improve(double best_log_probability) const;

  BeamOptions options_;
  std::vector<int32_t> stop_tokens_;
  int64_t max_new_tokens_;
  std::vector<Beam> beams_ = {Beam{}};
  std::vector<Hypothesis> finished_;
  bool is_done_ = false;
};

}  // namespace megatron
