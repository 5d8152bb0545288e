#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "megatron/comm/group.h"
#include "megatron/inference/draft.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron::cli {

// Flags of `megatron bench` for timing generation instead of training.
struct GenerationBenchFlags {
  int64_t rows = 0;      // concurrent texts; 0: times training
  int64_t requests = 0;  // total number of texts; 0: rows
  int64_t arrivals = 0;  // texts that arrive as others finish, after the first `rows` texts
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 128;
  int64_t top_k = 1;
  int64_t top_logprobs = -1;
  double repetition_penalty = 1;
  int64_t max_step_tokens = 2048;
  int64_t cache_tokens = 0;  // 0: room for all texts at their full length
  InferenceWeights weights = InferenceWeights::kModel;
  KvCacheType kv_cache = KvCacheType::kModel;
  DraftOptions drafts = {};
};
void add_generation_flags(FlagTable& table, GenerationBenchFlags& flags);

// Continues random prompts with a model of random weights, after a warm-up run, and reports time to
// first token and time between tokens in ms, and tokens per second. Times start when all requests
// are submitted.
//
// With arrivals it measures the steady state of a busy server: the first texts have different
// progress, times start when their prompts have been read, and end when the last text has arrived.
// Counts all tokens drawn in between, also in steps that read prompts; reports generated and prompt
// tokens per second, but no time to first token.
//
// Every rank calls it. Throws ConfigError for impossible sizes.
nlohmann::ordered_json measured_generation(const GenerationBenchFlags& flags,
                                           const TrainingArgs& args, const comm::Group& world);

}  // namespace megatron::cli
