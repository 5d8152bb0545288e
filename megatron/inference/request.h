#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/inference/beam_search.h"
#include "megatron/inference/sampler.h"

namespace megatron {

// A text to continue.
struct Request {
  // What the encoder of a T5 reads; its decoder continues the prompt, which is the token with which
  // the decoder begins. Empty for a GPT.
  std::vector<int32_t> text = {};
  std::vector<int32_t> prompt = {};
  int64_t max_new_tokens = 64;  // 0: the log-probabilities of the prompt alone
  SamplingOptions sampling = {};
  uint64_t seed = 1234;
  int64_t row = 0;  // among the rows of the seed: what a row draws depends on both and its tokens
  int64_t vocab_size = 0;  // ids from here on are never drawn; 0: those without a probability

  std::vector<int32_t> stop_tokens = {};  // drawing one ends the text; it is kept
  // Drawing the last token of one, behind the others, ends the text; all are kept.
  std::vector<std::vector<int32_t>> stop_sequences = {};
  int64_t min_new_tokens = 0;  // stop tokens are not drawn before
  // Behind the first token the second one is never drawn.
  std::optional<std::pair<int32_t, int32_t>> never_after = {};

  // Of each token given those before, from the raw logits: of the new ones and, if `scores_prompt`,
  // of the prompt's but the first.
  bool return_log_probabilities = false;
  bool scores_prompt = true;
  int64_t num_top = 0;  // with each of these tokens, so many of the most probable ones

  std::optional<BeamOptions> beams = {};  // beam search instead of draws

  // Log-probabilities of the prompt are asked for. They cost the logits of every position.
  bool wants_prompt() const { return return_log_probabilities && scores_prompt; }
};

using RequestId = int64_t;

enum class Finish {
  kNone,    // it goes on
  kStop,    // a stop token or sequence
  kLength,  // max_new_tokens
  kFailed,  // the logits are NaN
};

struct TokenProbability {
  int32_t token = 0;
  double log_probability = 0;
};

// What a step of the engine did for a request.
struct RequestProgress {
  RequestId id = 0;
  // Of further tokens of the prompt, if they were asked for, and num_top tokens for each of them.
  std::vector<double> prompt_log_probabilities = {};
  std::vector<TokenProbability> prompt_top = {};
  std::optional<int32_t> token = {};  // the one drawn
  double log_probability = 0;         // of it, if asked for
  std::vector<TokenProbability> top = {};
  std::vector<Hypothesis> hypotheses = {};  // of a beam search, with its last step
  Finish finish = Finish::kNone;            // other than kNone: the request is gone
};

}  // namespace megatron
