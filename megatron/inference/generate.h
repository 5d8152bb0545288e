#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/inference/engine.h"

namespace megatron {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  SamplingOptions sampling;
  uint64_t seed = 1234;
  int64_t vocab_size = 0;  // ids from here on are never drawn; 0: those without a probability
  std::vector<int32_t> stop_tokens;  // drawing one ends the row; it is kept
  bool return_log_probabilities = false;
};

struct Generation {
  std::vector<int32_t> tokens = {};  // the prompt, then what was drawn
  int64_t prompt_length = 0;
  bool is_stopped = false;  // by a stop token, not by length
  // Of tokens 1 .. n - 1 given those before, from the raw logits; empty unless asked for.
  std::vector<double> log_probabilities = {};
};

// Called for every token drawn, row by row.
using TokenSink = std::function<void(size_t row, int32_t token)>;
// Called after the tokens of a step: the rows that end although the model would go on. Every rank
// returns the same.
using RowsToEnd = std::function<std::vector<size_t>()>;

// Continues every prompt of a GPT, many at once (Engine). What a row draws depends on the seed, its
// number and its own tokens alone. Throws ConfigError for an empty prompt, an id that is not in the
// vocabulary, or a length beyond the model's positions; Error where the model's probabilities are
// not numbers.
//
// Every rank of the model calls it with the same arguments and gets the same result.
std::vector<Generation> generate(const InferenceModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token = {});
// The same for requests that differ in more than their prompts, also of a T5.
std::vector<Generation> generate(const InferenceModel& model, std::span<const Request> requests,
                                 const TokenSink& on_token = {}, const RowsToEnd& rows_to_end = {});

// The best continuations of a prompt by a beam search, at most as many as request.beams says.
// Tokens are those of the prompt and the continuation.
std::vector<Hypothesis> search_beams(const InferenceModel& model, const Request& request);

struct Score {
  double loss = 0;                        // mean negative log-likelihood of tokens 1 .. n - 1
  std::vector<double> log_probabilities;  // n - 1 of them
};

// How likely the model finds a text. Every rank of the model calls it and gets the same result.
// Throws ConfigError for fewer than two ids and as generate().
Score score(const InferenceModel& model, std::span<const int32_t> ids);

// The logits [n, v] of the tokens after each of n ids, in fp32 on the host. Every rank of the model
// calls it and gets the same. Throws as score(), but a text of one token has logits.
Tensor next_token_logits(const InferenceModel& model, std::span<const int32_t> ids);

}  // namespace megatron
