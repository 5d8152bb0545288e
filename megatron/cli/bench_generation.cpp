#include "megatron/cli/bench_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "megatron/cli/model_flags.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"
#include "megatron/device/allocator.h"
#include "megatron/device/philox.h"
#include "megatron/inference/engine.h"
#include "megatron/inference/make_drafter.h"
#include "megatron/models/t5/t5_chunk.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/run/collectively.h"
#include "megatron/run/device_choice.h"

namespace megatron::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

// The value below which a share of them lie; 0 if there are none.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

std::vector<int32_t> random_tokens(int64_t count, int64_t row, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const auto words =
        philox({static_cast<uint32_t>(i), static_cast<uint32_t>(row), 0, 0}, mixed_key(1, 0));
    tokens.push_back(static_cast<int32_t>(words[0] % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

// `written` of the new tokens are there already. The encoder of a T5 reads the prompt, and its
// decoder begins with token 0.
Request random_request(const GenerationBenchFlags& flags, int64_t row, int64_t written,
                       const TransformerConfig& config) {
  Request request;
  request.prompt = random_tokens(flags.prompt_tokens + written, row, config.counted_vocab_size());
  if (config.is_encoder_decoder()) {
    const auto end = request.prompt.begin() + flags.prompt_tokens;
    request.text.assign(request.prompt.begin(), end);
    request.prompt.erase(request.prompt.begin(), end);
    request.prompt.insert(request.prompt.begin(), 0);
  }
  request.max_new_tokens = flags.new_tokens - written;
  request.sampling.top_k = flags.top_k;
  request.sampling.repetition_penalty = flags.repetition_penalty;
  request.return_log_probabilities = flags.top_logprobs >= 0;
  request.scores_prompt = false;
  request.num_top = std::max<int64_t>(0, flags.top_logprobs);
  request.row = row;
  return request;
}

struct Times {
  std::vector<double> first_ms;  // by request, from the start
  std::vector<double> gaps_ms;   // between two tokens of a request
  std::vector<double> host_ms;   // of a step through DecodeSteps, without waiting for the device
  double total_ms = 0;
  int64_t num_tokens = 0;
};

// A step of the engine, and how many tokens each request got in it.
struct TimedStep {
  Clock::time_point end;
  std::map<RequestId, int64_t> tokens;
};
TimedStep timed_step(Engine& engine, Times& times) {
  const EngineState before = engine.state();
  const Clock::time_point begin = Clock::now();
  const std::vector<RequestProgress> all = engine.step();
  TimedStep step{.end = Clock::now(), .tokens = {}};
  const EngineState after = engine.state();
  if (after.launched_steps > before.launched_steps) {
    times.host_ms.push_back(ms_between(begin, step.end) -
                            1e3 * (after.waited_seconds - before.waited_seconds));
  }
  for (const RequestProgress& progress : all) {
    if (progress.finish == Finish::kFailed) throw Error(kNotANumber);
    if (progress.token) ++step.tokens[progress.id];
  }
  return step;
}

// Adds the times between the tokens of each request; those of one step are equally far apart.
// `last` has the end of a request's last step.
void add_gaps(const TimedStep& step, std::map<RequestId, Clock::time_point>& last, Times& times) {
  for (const auto& [id, count] : step.tokens) {
    times.num_tokens += count;
    const auto [place, is_first] = last.try_emplace(id, step.end);
    if (is_first) continue;
    const double gap = ms_between(place->second, step.end) / static_cast<double>(count);
    times.gaps_ms.insert(times.gaps_ms.end(), static_cast<size_t>(count), gap);
    place->second = step.end;
  }
}

Times timed(Engine& engine, const GenerationBenchFlags& flags, const TransformerConfig& config) {
  Times times;
  std::map<RequestId, Clock::time_point> last;
  const Clock::time_point begin = Clock::now();
  for (int64_t row = 0; row < flags.requests; ++row) {
    engine.submit(random_request(flags, row, 0, config));
  }
  while (engine.has_work()) {
    const TimedStep step = timed_step(engine, times);
    for (const auto& [id, count] : step.tokens) {
      if (!last.contains(id)) times.first_ms.push_back(ms_between(begin, step.end));
    }
    add_gaps(step, last, times);
  }
  times.total_ms = ms_between(begin, Clock::now());
  return times;
}

// The new tokens that text `row` of the first ones is said to have already, so that once all are
// read the texts have evenly spread numbers of new tokens, and leave evenly: a text draws while
// those after it are read. Less than 0: its prompt is shorter.
int64_t written_before(const GenerationBenchFlags& flags, int64_t row, bool is_t5) {
  const int64_t tokens = flags.rows * (flags.prompt_tokens + flags.new_tokens / 2);
  const int64_t steps = tokens / std::max<int64_t>(1, flags.max_step_tokens - flags.rows / 2);
  const int64_t written = (row * (flags.new_tokens - 1) - (flags.rows - row) * steps) / flags.rows;
  return std::max(written, is_t5 ? 0 : 1 - flags.prompt_tokens);
}

Times timed_arrivals(Engine& engine, const GenerationBenchFlags& flags,
                     const TransformerConfig& config) {
  RequestId last_of_first = 0;
  for (int64_t row = 0; row < flags.rows; ++row) {
    const int64_t written = written_before(flags, row, config.is_encoder_decoder());
    last_of_first = engine.submit(random_request(flags, row, written, config));
  }
  for (int64_t row = flags.rows; row < flags.rows + flags.arrivals; ++row) {
    engine.submit(random_request(flags, row, 0, config));
  }
  Times times;
  for (bool are_read = false; !are_read;) {  // texts are read in their order
    are_read = timed_step(engine, times).tokens.contains(last_of_first);
  }
  times = {};
  std::map<RequestId, Clock::time_point> last;
  const Clock::time_point begin = Clock::now();
  while (engine.state().waiting > 0) add_gaps(timed_step(engine, times), last, times);
  times.total_ms = ms_between(begin, Clock::now());
  if (times.gaps_ms.empty()) {
    throw ConfigError(fmt::format(
        "--arriving-requests {} have all arrived before --generate-rows {} texts were read; give "
        "more of them, or more --max-step-tokens",
        flags.arrivals, flags.rows));
  }
  return times;
}

void expect_possible(const GenerationBenchFlags& flags) {
  std::vector<std::string> wrong;
  const auto require = [&](const char* flag, int64_t value, int64_t least) {
    if (value < least)
      wrong.push_back(fmt::format("{} {} must be at least {}", flag, value, least));
  };
  require("--generate-rows", flags.rows, 1);
  require("--arriving-requests", flags.arrivals, 0);
  if (flags.arrivals == 0) require("--requests", flags.requests, flags.rows);
  require("--prompt-tokens", flags.prompt_tokens, 1);
  require("--new-tokens", flags.new_tokens, 2);
  require("--top-k", flags.top_k, 0);
  require("--top-logprobs", flags.top_logprobs, -1);
  if (flags.repetition_penalty <= 0) {
    wrong.push_back(
        fmt::format("--repetition-penalty {} must be above 0", flags.repetition_penalty));
  }
  require("--max-step-tokens", flags.max_step_tokens, 1);
  require("--cache-tokens", flags.cache_tokens, 0);
  for (std::string& problem : cli::problems(flags.drafts)) wrong.push_back(std::move(problem));
  if (has_draft_model(flags.drafts)) {
    wrong.emplace_back(
        "--speculative-method draft_model: the benchmark's model has random weights, which no "
        "other model predicts; use ngram or mtp");
  }
  if (flags.arrivals > 0 && flags.requests > 0) {
    wrong.push_back(fmt::format(
        "--requests {} are texts that all wait from the start; with --arriving-requests there are "
        "{} + {}: remove it",
        flags.requests, flags.rows, flags.arrivals));
  }
  if (!wrong.empty()) throw ConfigError(wrong);
}

}  // namespace

void add_generation_flags(FlagTable& table, GenerationBenchFlags& flags) {
  table.group("benchmark of generation");
  table.add("--generate-rows", flags.rows,
            "Time generation with this batch of texts instead of training; 0: training.");
  table.add("--requests", flags.requests, "Total number of texts; 0: --generate-rows.");
  table.add(
      "--arriving-requests", flags.arrivals,
      "Measure the steady state of a server that is never idle: so many texts arrive, each when "
      "another one leaves. Before, --generate-rows texts are read that have come unequally "
      "far; no time or rate counts that.");
  table.add("--prompt-tokens", flags.prompt_tokens, "Random tokens of each prompt.");
  table.add("--new-tokens", flags.new_tokens, "Tokens to generate for each prompt.");
  table.add("--top-k", flags.top_k, "Sample from the k most probable tokens; 0: from all.");
  table.add("--top-logprobs", flags.top_logprobs,
            "Find the log-probability of each token of a text, and of so many of the most probable "
            "ones with each new token; -1: of none.");
  table.add("--repetition-penalty", flags.repetition_penalty,
            "Divides a positive logit of a token that the text has, multiplies a negative one.");
  table.add("--max-step-tokens", flags.max_step_tokens,
            "Tokens of one forward pass; longer prompts are read in several.");
  table.add("--cache-tokens", flags.cache_tokens,
            "Tokens that the cache holds; 0: --generate-rows texts of full length. Texts that have "
            "come unequally far need less.");
  add_inference_weights(table, flags.weights);
  add_kv_cache_dtype(table, flags.kv_cache);
  add_draft_flags(table, flags.drafts);
}

nlohmann::ordered_json measured_generation(const GenerationBenchFlags& given,
                                           const TrainingArgs& args, const comm::Group& world) {
  GenerationBenchFlags flags = given;
  if (flags.requests == 0 && flags.arrivals == 0) flags.requests = flags.rows;
  expect_possible(flags);
  warn_of_ineffective(flags.drafts);
  warn_of_device(args.training.device, world);
  const std::unique_ptr<OwnedStream> stream = open_stream(args.training, world);
  ParallelConfig layout = args.parallel;
  layout.sequence_parallel = false;  // a step has few tokens
  const ParallelContext parallel = make_parallel_context(world, layout);
  const TransformerConfig& config = args.transformer;
  const int stage = parallel.pipeline.rank();
  std::optional<T5Model> t5;
  std::optional<GptModel> gpt;
  if (config.is_encoder_decoder()) {
    const std::vector<std::string> wrong = t5_pipeline_problems(args.parallel, config);
    if (!wrong.empty()) throw CommonConfigError(wrong);
    t5.emplace(config, t5_chunk(args.parallel, config, stage), parallel.tensor, stream->get());
    initialize(*t5, 1);
  } else {
    gpt.emplace(config, model_chunks(args.parallel, config.num_layers, stage).front(),
                parallel.tensor, stream->get());
    initialize(*gpt, 1);
  }
  round_weights(t5 ? static_cast<const Module&>(*t5) : *gpt, flags.weights, stream->get());
  InferenceModel model = t5 ? InferenceModel(*t5, parallel) : InferenceModel(*gpt, parallel);
  model.kv_cache = flags.kv_cache;

  const int64_t length = flags.prompt_tokens + flags.new_tokens;
  EngineOptions options;
  options.max_rows = flags.rows;
  options.max_step_tokens = flags.max_step_tokens;
  options.cache_tokens =
      flags.cache_tokens > 0 ? flags.cache_tokens : flags.rows * (length + options.page_tokens);
  options.reuse_prefixes = false;
  options.encoder_tokens = flags.rows * flags.prompt_tokens;
  options.drafter = collectively([&] { return make_drafter(flags.drafts, model, options); });
  Engine engine(model, options);
  const auto measured = [&] {
    if (flags.arrivals > 0) return timed_arrivals(engine, flags, config);
    GenerationBenchFlags warmup = flags;
    warmup.requests = flags.rows;
    warmup.new_tokens = std::min<int64_t>(flags.new_tokens, 8);
    timed(engine, warmup, config);
    return timed(engine, flags, config);
  };
  const Times times = measured();

  const double gap = quantile(times.gaps_ms, 0.5);
  nlohmann::ordered_json report;
  report["system"] = "megatron.cpp";
  report["mode"] = name_of(config.params_dtype);
  report["weights"] = name_of(flags.weights);
  report["kv_cache"] = name_of(flags.kv_cache);
  report["device"] = stream->get().device.str();
  report["threads"] = num_threads();
  report["ranks"] = world.size();
  report["rows"] = flags.rows;
  report["requests"] = flags.arrivals > 0 ? flags.rows + flags.arrivals : flags.requests;
  report["arriving_requests"] = flags.arrivals;
  report["prompt_tokens"] = flags.prompt_tokens;
  report["new_tokens"] = flags.new_tokens;
  report["top_k"] = flags.top_k;
  report["top_logprobs"] = flags.top_logprobs;
  report["repetition_penalty"] = flags.repetition_penalty;
  report["first_token_ms_p50"] = nullptr;  // of a text that arrives, when others leave
  if (flags.arrivals == 0) report["first_token_ms_p50"] = quantile(times.first_ms, 0.5);
  report["between_tokens_ms_p50"] = gap;
  report["between_tokens_ms_p95"] = quantile(times.gaps_ms, 0.95);
  report["decode_tokens_per_second"] = gap > 0 ? 1000 * static_cast<double>(flags.rows) / gap : 0;
  report["host_ms_p50"] = quantile(times.host_ms, 0.5);  // the device's work hides it
  report["output_tokens_per_second"] =
      1000 * static_cast<double>(times.num_tokens) / times.total_ms;
  report["prompt_tokens_per_second"] = nullptr;  // while texts arrive
  if (flags.arrivals > 0) {
    report["prompt_tokens_per_second"] =
        1000 * static_cast<double>(flags.arrivals * flags.prompt_tokens) / times.total_ms;
  }
  report["preemptions"] = engine.state().preemptions;
  if (options.drafter != nullptr) {  // of all steps, also those without a time
    report["speculative_method"] = name_of(flags.drafts.speculative_method);
    report["num_speculative_tokens"] = flags.drafts.num_speculative_tokens;
    report["draft_tokens"] = engine.state().draft_tokens;
    report["accepted_draft_tokens"] = engine.state().accepted_draft_tokens;
  }
  report["peak_allocated_mib"] =
      static_cast<double>(allocator_of(stream->get().device).stats().peak_allocated_bytes) /
      (1024.0 * 1024.0);
  return report;
}

}  // namespace megatron::cli
