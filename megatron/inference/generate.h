#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/inference/sampler.h"
#include "megatron/models/gpt/gpt_model.h"

namespace megatron {

// A model and the ranks that share it, tensor and pipeline parallel; other groups are not used.
struct InferenceModel {
  const GptModel& chunk;          // this rank's part
  ParallelContext parallel = {};  // the default: one rank has all of it
};

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

// Continues every prompt. The rows run as one batch: the shortest prompt is read at once, the rest
// of longer ones token by token (Megatron-LM's loop). What a row draws depends on the seed, its
// number and its own tokens alone. Throws ConfigError for an empty prompt, an id that is not in the
// vocabulary, or a length beyond the model's positions.
//
// Every rank of the model calls it with the same arguments and gets the same result. A step is a
// pass through the stages; the last one's first rank gathers the logits of one position, draws, and
// tells the others: one gather and one broadcast a step.
std::vector<Generation> generate(const InferenceModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token = {});

struct Score {
  double loss = 0;                        // mean negative log-likelihood of tokens 1 .. n - 1
  std::vector<double> log_probabilities;  // n - 1 of them
};

// How likely the model finds a text. Every rank of the model calls it and gets the same result.
// Throws ConfigError for fewer than two ids and as generate().
Score score(const InferenceModel& model, std::span<const int32_t> ids);

}  // namespace megatron
