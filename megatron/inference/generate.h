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
  int64_t vocab_size = 0;  // ids >= vocab_size are never drawn; 0: only padding is excluded
  std::vector<int32_t> stop_tokens;  // ends the row when drawn, and is kept
  bool return_log_probabilities = false;
};

struct Generation {
  std::vector<int32_t> tokens = {};  // the prompt and its continuation
  int64_t prompt_length = 0;
  bool is_stopped = false;  // by a stop token, not by length
  // log p(token | earlier tokens) of tokens 1 .. n - 1, from the raw logits; empty unless
  // requested.
  std::vector<double> log_probabilities = {};
};

// Called for every drawn token, row by row.
using TokenSink = std::function<void(size_t row, int32_t token)>;
// Called after each step: returns rows to end early. Every rank returns the same.
using RowsToEnd = std::function<std::vector<size_t>()>;

// Continues every prompt of a GPT, many at once (Engine). The tokens of a row depend only on the
// seed, its index and its own tokens. Throws ConfigError for an empty prompt, an id that is not in
// the vocabulary, or a length beyond the model's positions; Error if the model's logits are NaN.
//
// Every rank of the model calls it with the same arguments and gets the same result.
std::vector<Generation> generate(const InferenceModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token = {});
// The same with individual requests, also for a T5. `end` gets the engine's state after the last
// step. Throws as make_drafter(), too.
std::vector<Generation> generate(const InferenceModel& model, std::span<const Request> requests,
                                 const TokenSink& on_token = {}, const RowsToEnd& rows_to_end = {},
                                 const DraftOptions& drafts = {}, EngineState* end = nullptr);

// The best continuations by beam search, at most request.beams->width. Tokens include the prompt.
std::vector<Hypothesis> search_beams(const InferenceModel& model, const Request& request);

struct Score {
  double loss = 0;                        // mean negative log-likelihood of tokens 1 .. n - 1
  std::vector<double> log_probabilities;  // n - 1 of them
};

// The log-probabilities of a text. Every rank of the model calls it and gets the same result.
// Throws as generate(), and ConfigError for fewer than two ids.
Score score(const InferenceModel& model, std::span<const int32_t> ids);

// The logits [n, v] of the tokens after each of n ids, in fp32 on the host. Every rank of the model
// calls it and gets the same. Throws as score(), but a text of one token has logits.
Tensor next_token_logits(const InferenceModel& model, std::span<const int32_t> ids);

}  // namespace megatron
