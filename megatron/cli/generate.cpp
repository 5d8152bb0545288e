#include "megatron/cli/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/sample_files.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/inference/generate.h"
#include "megatron/inference/model_step.h"
#include "megatron/inference/text_stream.h"
#include "megatron/run/collectively.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

constexpr int64_t kNoToken = std::numeric_limits<int64_t>::min();
constexpr int64_t kNewTokens = 64;  // if --max-new-tokens is not given

struct GenerateFlags {
  ModelFlags model;
  PromptFlags texts;
  int64_t max_new_tokens = kNoToken;
  DrawFlags draws;
  bool ignore_eod = false;
  std::vector<std::string> stop;
  bool add_bos = false;
  int64_t num_beams = 0;
  bool as_json = false;
  bool logprobs = false;
  bool return_logits = false;
  DraftOptions drafts;
  SampleFlags samples;
};

FlagTable flags_of(GenerateFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("prompts");
  add_prompt_flags(table, flags.texts, "Texts to continue; for a T5, the inputs of its encoder.",
                   "{\"text\": ...} or {\"ids\": [...]}");
  table.group("generation");
  table
      .add_optional(
          "--max-new-tokens,--tokens-to-generate", flags.max_new_tokens,
          "Maximum new tokens for each prompt; 64 if not given, limited by the model's positions.")
      .at_most(int64_t{1} << 24);
  add_draw_flags(table, flags.draws);
  SamplingOptions& sampling = flags.draws.sampling;
  table.add("--top-p-decay", sampling.top_p_decay, "Multiply p by it after every token; 0: never.");
  table.add("--top-p-bound", sampling.top_p_bound, "p never decays below it.");
  table.add("--min-p", sampling.min_p,
            "Sample from tokens with at least this fraction of the largest probability.");
  table.add("--repetition-penalty", sampling.repetition_penalty,
            "Make tokens that occur in the text less probable; 1: off.");
  table.add("--num-beams", flags.num_beams,
            "Beam search with this many beams instead of sampling.");
  table.add("--stop", flags.stop, "Texts that end the continuation; they are not printed.").none();
  table.add_switch("--add-BOS", flags.add_bos,
                   "Put the end-of-document token before each prompt, which may then be empty.");
  table.add_switch("--ignore-eod", flags.ignore_eod,
                   "Do not stop at end tokens: eos_token_id of the model's config.json or "
                   "generation_config.json, or else the tokenizer's.");
  add_kv_cache_dtype(table, flags.model.kv_cache);
  add_draft_flags(table, flags.drafts);
  table.group("output");
  table.add_switch("--json", flags.as_json, "Print one JSON object per prompt instead of text.");
  table.add_switch("--logprobs", flags.logprobs,
                   "With --json: print log-probabilities of all tokens after the first.");
  table.add_switch("--return_logits", flags.return_logits,
                   "Refused: megatron score --logits prints logits.");
  add_sample_flags(table, flags.samples);
  return table;
}

std::vector<std::string> problems(const GenerateFlags& flags) {
  std::vector<std::string> found = cli::problems(flags.draws.sampling);
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(flags.num_beams >= 0, fmt::format("--num-beams {} must be 0 or more", flags.num_beams));
  require(!flags.return_logits,
          "--return_logits: generate prints no logits; use megatron score --logits for those of a "
          "text, or --json --logprobs here for log-probabilities");
  require(flags.num_beams == 0 || !flags.logprobs,
          "--num-beams prints no log-probabilities; remove --logprobs");
  for (std::string& problem : cli::problems(flags.drafts)) found.push_back(std::move(problem));
  require(flags.num_beams == 0 || flags.drafts.num_speculative_tokens == 0,
          fmt::format("--num-beams {} takes no drafts; remove --num-speculative-tokens {}",
                      flags.num_beams, flags.drafts.num_speculative_tokens));
  require(flags.max_new_tokens == kNoToken || flags.max_new_tokens >= 0,
          fmt::format("--max-new-tokens {} must be 0 or more", flags.max_new_tokens));
  if (is_sample_run(flags.samples)) {
    for (std::string& problem : problems(flags.samples)) found.push_back(std::move(problem));
    require(flags.stop.empty(),
            "--stop has no effect on samples; remove it, or give the prompts with --prompt-file");
  } else {
    require(flags.texts.are_given(),
            "there is nothing to continue; give --prompt \"text\" or --prompt-file");
  }
  return found;
}

std::vector<std::vector<int32_t>> read_prompts(const GenerateFlags& flags, const LoadedModel& gpt) {
  std::vector<std::vector<int32_t>> prompts;
  const auto encoded = [&](const std::string& text) {
    std::vector<int32_t> ids = gpt.required_tokenizer().encode(text);
    if (flags.add_bos) ids.insert(ids.begin(), gpt.required_tokenizer().eod());
    return ids;
  };
  for (const std::string& text : flags.texts.prompts) prompts.push_back(encoded(text));
  if (flags.texts.prompt_file.empty()) return prompts;
  each_line(flags.texts.prompt_file, [&](const std::string& line, int64_t number) {
    about_line(flags.texts.prompt_file, number, [&] {
      prompts.push_back(line.starts_with("{") ? ids_of(object_of(line), gpt) : encoded(line));
      if (prompts.back().empty()) {
        throw ConfigError("the prompt has no tokens; remove the line or give it some text");
      }
      check_ids(prompts.back(), gpt.inference().config().counted_vocab_size());
    });
  });
  return prompts;
}

// Ends a row where a text of --stop begins behind its prompt, and returns its text; nothing if none
// comes. Tokens that have a part in the text stay.
std::optional<std::string> cut_at_stop(const GenerateFlags& flags, const LoadedModel& model,
                                       Generation& row) {
  if (flags.stop.empty() || model.tokenizer == nullptr) return std::nullopt;
  const auto prompt = std::span(row.tokens).first(static_cast<size_t>(row.prompt_length));
  std::string text = model.tokenizer->decode(prompt);
  TextStream stream(*model.tokenizer, prompt, flags.stop);
  std::vector<int64_t> begins;
  for (const int32_t token : std::span(row.tokens).subspan(prompt.size())) {
    text += stream.push(token);
    begins.push_back(stream.last_begin());
  }
  text += stream.finish();
  if (!stream.is_stopped()) return std::nullopt;
  const auto end =
      std::ranges::find_if(begins, [&](int64_t begin) { return begin >= stream.num_given(); });
  const auto num_dropped =
      row.tokens.size() - prompt.size() - static_cast<size_t>(end - begins.begin());
  row.tokens.resize(row.tokens.size() - num_dropped);
  if (flags.logprobs) row.log_probabilities.resize(row.log_probabilities.size() - num_dropped);
  row.is_stopped = true;
  return text;
}

void print_generation(const GenerateFlags& flags, const LoadedModel& gpt, Generation row,
                      std::optional<double> score = {}) {
  std::optional<std::string> text = cut_at_stop(flags, gpt, row);
  if (!text && gpt.tokenizer != nullptr) text = gpt.tokenizer->decode(row.tokens);
  if (!flags.as_json) return print_line(text ? *text : json(row.tokens).dump());
  json object = {{"ids", row.tokens},
                 {"prompt_tokens", row.prompt_length},
                 {"finish_reason", row.is_stopped ? "stop" : "length"}};
  if (text) object["text"] = *text;
  if (flags.logprobs) object["logprobs"] = row.log_probabilities;
  if (score) object["score"] = *score;
  print_line(object.dump());
}

// Throws ConfigError for flags that only a GPT knows.
void expect_t5_flags(const GenerateFlags& flags) {
  const auto refuse = [](bool is_given, const char* flag) {
    if (is_given) throw ConfigError(fmt::format("{} is for a GPT; remove it for a T5", flag));
  };
  refuse(flags.add_bos, "--add-BOS");
  refuse(is_sample_run(flags.samples), "a flag of samples");
}

// The output of a T5's decoder after its start token, without end tokens.
void print_decoded(const GenerateFlags& flags, const LoadedModel& t5, size_t prompt_tokens,
                   Generation row, std::optional<double> score) {
  row.tokens.erase(row.tokens.begin());
  row.prompt_length = 0;
  Generation written = row;
  if (row.is_stopped && !score) {  // a beam has no end
    written.tokens.pop_back();
    if (flags.logprobs) written.log_probabilities.pop_back();
  }
  std::optional<std::string> text = cut_at_stop(flags, t5, written);
  if (text) {
    row = std::move(written);
  } else if (t5.tokenizer != nullptr) {
    text = t5.tokenizer->decode(written.tokens);
  }
  if (!flags.as_json) return print_line(text ? *text : json(row.tokens).dump());
  json object = {{"ids", row.tokens},
                 {"prompt_tokens", prompt_tokens},
                 {"finish_reason", row.is_stopped ? "stop" : "length"}};
  if (text) object["text"] = *text;
  if (flags.logprobs) object["logprobs"] = row.log_probabilities;
  if (score) object["score"] = *score;
  print_line(object.dump());
}

void print_result(const GenerateFlags& flags, const LoadedModel& loaded, const Request& request,
                  Generation row, std::optional<double> score = {}) {
  if (is_encoder_decoder(loaded.kind)) {
    print_decoded(flags, loaded, request.text.size(), std::move(row), score);
  } else {
    print_generation(flags, loaded, std::move(row), score);
  }
}

// Input read by rank 0 and broadcast to all ranks.
json read_request(const GenerateFlags& flags, const LoadedModel& loaded) {
  json request = {{"vocab_size", loaded.vocab_size}, {"stop_tokens", json::array()}};
  request["prompts"] = is_sample_run(flags.samples)
                           ? sample_prompts(flags.samples, loaded.required_tokenizer(),
                                            max_positions(loaded.inference().config()))
                           : read_prompts(flags, loaded);
  if (is_encoder_decoder(loaded.kind)) request["start"] = loaded.required_decoder_start();
  if (!flags.ignore_eod) request["stop_tokens"] = loaded.end_tokens;
  if (!flags.stop.empty()) loaded.required_tokenizer();
  return request;
}

// Looks for the texts of --stop while rows grow. Rank 0 reads the tokens; all ranks learn which
// rows end.
class StopTexts {
 public:
  StopTexts(const GenerateFlags& flags, const LoadedModel& model, std::span<const Request> requests,
            const comm::Group& world)
      : world_(world) {
    if (world.rank() != 0) return;
    for (const Request& request : requests) {
      std::span<const int32_t> before;  // the decoder of a T5 has written nothing
      if (is_decoder_only(model.kind)) before = request.prompt;
      streams_.emplace_back(*model.tokenizer, before, flags.stop);
    }
  }

  void push(size_t row, int32_t token) {
    if (streams_.empty()) return;
    streams_[row].push(token);
    if (streams_[row].is_stopped()) ended_.push_back(row);
  }
  // Drains the rows that have ended since the last call.
  std::vector<size_t> ended_rows() {
    return shared(std::exchange(ended_, {}), world_).get<std::vector<size_t>>();
  }

 private:
  const comm::Group& world_;
  std::vector<TextStream> streams_;
  std::vector<size_t> ended_;
};

std::vector<Generation> generations(const GenerateFlags& flags, const LoadedModel& loaded,
                                    std::span<const Request> requests, const comm::Group& world,
                                    EngineState& end) {
  if (flags.stop.empty()) return generate(loaded.inference(), requests, {}, {}, flags.drafts, &end);
  StopTexts stops(flags, loaded, requests, world);
  return generate(
      loaded.inference(), requests, [&](size_t row, int32_t token) { stops.push(row, token); },
      [&] { return stops.ended_rows(); }, flags.drafts, &end);
}

// To standard error, because standard output has the texts.
void print_drafts(const EngineState& state) {
  const auto accepted = static_cast<double>(state.accepted_draft_tokens);
  const auto verified = static_cast<double>(std::max<int64_t>(1, state.draft_tokens));
  const std::string line =
      fmt::format("draft tokens: {} verified, {} accepted ({:.1f}%)\n", state.draft_tokens,
                  state.accepted_draft_tokens, 100 * accepted / verified);
  std::fputs(line.c_str(), stderr);
}

// A request for each prompt, which the encoder of a T5 reads and a GPT continues.
std::vector<Request> requests_of(const GenerateFlags& flags, const json& read, int64_t positions) {
  Request base;
  base.max_new_tokens = flags.max_new_tokens == kNoToken ? kNewTokens : flags.max_new_tokens;
  flags.draws.apply(base);
  base.return_log_probabilities = flags.logprobs;
  base.vocab_size = read.at("vocab_size");
  base.stop_tokens = read.at("stop_tokens").get<std::vector<int32_t>>();
  if (flags.num_beams > 0) base.beams = BeamOptions{flags.num_beams, flags.draws.length_penalty};
  std::vector<Request> requests;
  for (const json& prompt : read.at("prompts")) {
    Request& one = requests.emplace_back(base);
    one.prompt = prompt.get<std::vector<int32_t>>();
    if (read.contains("start")) {
      one.text = std::exchange(one.prompt, {read.at("start").get<int32_t>()});
    }
    one.row = static_cast<int64_t>(requests.size()) - 1;
    const int64_t rest = positions - static_cast<int64_t>(one.prompt.size());
    if (is_sample_run(flags.samples)) {
      one.max_new_tokens = num_new_tokens(flags.samples, one.prompt.size(), positions);
    } else if (flags.max_new_tokens == kNoToken && rest > 0) {
      one.max_new_tokens = std::min(kNewTokens, rest);
    }
  }
  return requests;
}

}  // namespace

int generate_text(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  GenerateFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {.usage = "megatron generate --load DIR --prompt TEXT ... [flags]",
                                 .takes_training_words = true,
                                 .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;

  warn_of_ineffective(flags.drafts);
  const LoadedModel loaded = load_model(flags.model, world, has_decoder);
  const auto drafting = load_draft_model(flags.drafts, flags.model, world);
  if (is_encoder_decoder(loaded.kind)) collectively([&] { expect_t5_flags(flags); });
  json read;
  if (world.rank() == 0) read = read_request(flags, loaded);
  const int64_t positions = max_positions(loaded.inference().config());
  const std::vector<Request> requests = requests_of(flags, shared(read, world), positions);
  if (flags.num_beams > 0) {
    for (const Request& one : requests) {
      const Hypothesis best = search_beams(loaded.inference(), one).front();
      const auto length = static_cast<int64_t>(one.prompt.size());
      if (world.rank() == 0) {
        print_result(flags, loaded, one, {best.tokens, length, best.is_stopped}, best.score);
      }
    }
    return 0;
  }
  EngineState end;
  const std::vector<Generation> rows =
      collectively([&] { return generations(flags, loaded, requests, world, end); });
  if (world.rank() != 0) return 0;
  if (is_sample_run(flags.samples)) {
    write_samples(flags.samples, *loaded.tokenizer, rows, positions);
  } else {
    for (size_t i = 0; i < rows.size(); ++i) print_result(flags, loaded, requests[i], rows[i]);
  }
  if (flags.drafts.num_speculative_tokens > 0) print_drafts(end);
  return 0;
}

}  // namespace megatron::cli
