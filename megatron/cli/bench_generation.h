#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "megatron/comm/group.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron::cli {

// Flags of `megatron bench` that time generation in place of training.
struct GenerationBenchFlags {
  int64_t rows = 0;      // texts that are continued at once; 0: training is timed
  int64_t requests = 0;  // texts in all; 0: as many as rows
  int64_t arrivals = 0;  // texts that arrive as others leave, after `rows` first ones
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 128;
  int64_t top_k = 1;
  int64_t top_logprobs = -1;
  double repetition_penalty = 1;
  int64_t max_step_tokens = 2048;
  int64_t cache_tokens = 0;  // 0: all texts at once have room at their full length
  InferenceWeights weights = InferenceWeights::kModel;
  KvCacheType kv_cache = KvCacheType::kModel;
};
void add_generation_flags(FlagTable& table, GenerationBenchFlags& flags);

// Continues random prompts with a model of random weights, after a run that warms up, and reports
// milliseconds to the first token and between two tokens of a text, and tokens per second. Times
// start when all requests are submitted.
//
// With arrivals it reports a server that is never idle and whose texts neither begin nor end
// together: the first texts have come unequally far, times start when they have been read, and end
// when the last text has arrived. All tokens drawn in between count, in steps that also read
// prompts, too: tokens of texts and of prompts per second are those of a steady state. There is no
// time to the first token then.
//
// Every rank calls it. Throws ConfigError for flags that no text can have.
nlohmann::ordered_json measured_generation(const GenerationBenchFlags& flags,
                                           const TrainingArgs& args, const comm::Group& world);

}  // namespace megatron::cli
