#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/inference/beam_search.h"
#include "megatron/inference/sampler.h"

namespace megatron {

// Forbids tokens, for texts of a given form.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the logits of tokens that may not follow the drawn ones to minus infinity, and leaves at
  // least one finite. Called by the engine's thread.
  virtual void forbid(std::span<float> logits, std::span<const int32_t> drawn) = 0;
};

// Pooling of the final hidden states of a text's tokens to its embedding.
enum class Pooling {
  kMean,       // their mean
  kLast,       // of the last token
  kFirst,      // of the first token: [CLS]
  kMeanInner,  // the mean without the first and the last token, which are [CLS] and [SEP]
};

// A text to continue.
struct Request {
  // The encoder input of a T5, whose decoder continues the prompt, its start token. Empty for a
  // GPT.
  std::vector<int32_t> text = {};
  std::vector<int32_t> prompt = {};
  int64_t max_new_tokens = 64;  // 0: only scores the prompt
  SamplingOptions sampling = {};
  uint64_t seed = 1234;
  int64_t row = 0;         // random stream of the seed: draws depend on seed, row and tokens
  int64_t vocab_size = 0;  // ids >= vocab_size are never drawn; 0: only padding is excluded

  std::vector<int32_t> stop_tokens = {};  // ends the text when drawn, and is kept
  // Token sequences that end the text; they are kept.
  std::vector<std::vector<int32_t>> stop_sequences = {};
  int64_t min_new_tokens = 0;  // stop tokens cannot be drawn earlier
  // The second token is never drawn directly after the first.
  std::optional<std::pair<int32_t, int32_t>> never_after = {};

  // Constrains the drawn tokens; only rank 0 has it. Not with beams or pipeline stages.
  std::shared_ptr<TokenConstraint> constraint = {};
  bool is_constrained = false;  // on all ranks

  // Returns log p(token | earlier tokens), from the raw logits, of the new tokens and, if
  // `scores_prompt`, of the prompt's tokens except the first.
  bool return_log_probabilities = false;
  bool scores_prompt = true;
  int64_t first_scored = 1;  // the first token of the prompt whose log-probability is returned
  int64_t num_top = 0;       // most probable alternatives to return with each of these tokens

  // Returns the embedding of the prompt; max_new_tokens is 0. Not of a T5.
  std::optional<Pooling> pooling = {};

  std::optional<BeamOptions> beams = {};  // beam search instead of draws

  // True if log-probabilities of the prompt are requested, which cost logits at every position.
  bool wants_prompt() const { return return_log_probabilities && scores_prompt; }
};

using RequestId = int64_t;

enum class Finish {
  kNone,    // unfinished
  kStop,    // a stop token or sequence
  kLength,  // max_new_tokens
  kFailed,  // the logits are NaN
};

struct TokenProbability {
  int32_t token = 0;
  double log_probability = 0;
};

// Progress of a request in one step.
struct RequestProgress {
  RequestId id = 0;
  // For further tokens of the prompt, if requested; prompt_top has num_top tokens for each.
  std::vector<double> prompt_log_probabilities = {};
  std::vector<TokenProbability> prompt_top = {};
  std::optional<int32_t> token = {};  // the drawn token
  double log_probability = 0;         // of it, if requested
  std::vector<TokenProbability> top = {};
  std::vector<Hypothesis> hypotheses = {};  // of a beam search, in its last step
  std::vector<float> embedding = {};        // [h], if requested, in its last step
  Finish finish = Finish::kNone;            // not kNone: the request has been removed
};

}  // namespace megatron
