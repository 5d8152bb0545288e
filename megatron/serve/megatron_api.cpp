#include "megatron/serve/megatron_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/core/printable.h"
#include "megatron/http/http_server.h"
#include "megatron/inference/model_step.h"
#include "megatron/serve/megatron_fields.h"
#include "megatron/serve/request_body.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

// Python's json.dumps(sort_keys=True, separators=(",", ":")), and a newline.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
}

Answer message(int status, const std::string& text) {
  return {status, text_of({{"message", text}})};
}

Answer refusal(const ServedModel& model, const Refusal& refused) {
  const bool is_plain = refused.is_late && !model.strict_http_status;
  return {is_plain ? 200 : 400, text_of(refused.what())};
}

bool is_json(const std::string& content_type) {
  const std::string type = content_type.substr(0, content_type.find(';'));
  return type == "application/json" ||
         (type.starts_with("application/") && type.ends_with("+json"));
}

// The texts of single tokens: for SentencePiece as in the vocabulary, otherwise decoded.
std::vector<std::string> segments_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  const std::string_view type = tokenizer.type();
  const bool shows_pieces = type == "SentencePieceTokenizer" ||
                            type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer" ||
                            type == "HuggingFaceTokenizer";
  std::vector<std::string> segments;
  for (const int32_t id : ids) {
    if (type == "NullTokenizer") {
      segments.push_back(std::to_string(id));
    } else {
      segments.push_back(shows_pieces ? tokenizer.piece(id) : tokenizer.decode({&id, 1}));
    }
  }
  return segments;
}

// The ids of a literal; empty if the tokenizer cannot encode it, such as a NullTokenizer.
std::vector<int32_t> ids_if_any(const Tokenizer& tokenizer, const char* text) {
  try {
    return tokenizer.encode(text);
  } catch (const FormatError&) {
    return {};
  }
}

// The ids that end a text, by the fields of a request.
void set_stops(Request& request, const ServedModel& model, const Fields& fields) {
  const auto single = [&](const char* text) -> std::optional<int32_t> {
    const std::vector<int32_t> ids = ids_if_any(model.tokenizer, text);
    if (ids.empty()) return {};
    return model.tokenizer.decode({&ids.back(), 1}) == text ? std::optional(ids.back())
                                                            : std::nullopt;
  };
  const std::optional<int32_t> newline = single("\n");
  const std::optional<int32_t> two_newlines = single("\n\n");
  if (fields.stop_on_double_eol || fields.stop_on_eol) {
    if (two_newlines) request.stop_sequences.push_back({*two_newlines});
    if (newline && fields.stop_on_double_eol) {
      request.stop_sequences.push_back({*newline, *newline});
    } else if (newline) {
      request.stop_sequences.push_back({*newline});
    }
  } else {
    request.stop_tokens = model.end_tokens;
  }
  const std::vector<int32_t> colon = ids_if_any(model.tokenizer, ":");
  if (fields.prevent_newline_after_colon && !colon.empty() && newline) {
    request.never_after = {colon.back(), *newline};
  }
}

std::vector<std::vector<int32_t>> encoded_prompts(const ServedModel& model, const Fields& fields) {
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : fields.prompts) {
    if (!model.may_hold(text)) {
      throw Refusal("Length of prompt + tokens_to_generate longer than allowed");
    }
    std::vector<int32_t> ids = model.tokenizer.encode(text);
    if (fields.add_bos && model.eod()) ids.insert(ids.begin(), *model.eod());
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

// Checks against the model's sizes, with the reference's messages.
void check_sizes(const ServedModel& model, const Fields& fields,
                 const std::vector<std::vector<int32_t>>& prompts) {
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
    if (prompt.empty()) throw Refusal("Empty prompts require add_BOS=true");
  }
  const int64_t padded = longest + fields.tokens_to_generate;
  if (fields.beam_width) {
    if (longest >= std::min(padded, model.max_positions)) {
      throw Refusal("context length + tokens_to_generate too large");
    }
  } else if (padded > model.max_positions) {
    throw Refusal("Length of prompt + tokens_to_generate longer than allowed");
  }
  const int64_t tokens = padded * static_cast<int64_t>(prompts.size());
  if (!fields.beam_width && tokens > model.max_tokens_to_oom) {
    throw Refusal(
        fmt::format("Too many tokens.  {} is greater than {}", tokens, model.max_tokens_to_oom));
  }
  if (fields.top_k >= model.vocab_size) {
    throw Refusal(fmt::format("top_k must be less than the vocabulary size {}", model.vocab_size));
  }
}

std::vector<Request> requests_of(ServedModel& model, const Fields& fields) {
  const std::vector<std::vector<int32_t>> prompts = encoded_prompts(model, fields);
  check_sizes(model, fields, prompts);
  int64_t padded = 0;
  for (const auto& prompt : prompts) {
    padded = std::max(padded, static_cast<int64_t>(prompt.size()) + fields.tokens_to_generate);
  }
  const uint64_t seed =
      fields.random_seed ? static_cast<uint64_t>(*fields.random_seed) : model.next_seed();
  std::vector<Request> requests;
  for (const auto& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.row = static_cast<int64_t>(requests.size());
    request.seed = seed;
    request.vocab_size = model.vocab_size;
    request.sampling = {.temperature = fields.temperature,
                        .top_k = fields.top_k,
                        .top_p = fields.top_p,
                        .top_p_decay = fields.top_p_decay,
                        .top_p_bound = fields.top_p_bound};
    const auto length = static_cast<int64_t>(prompt.size());
    // Rows grow until the longest prompt has its new tokens; scoring adds none.
    request.max_new_tokens = fields.tokens_to_generate == 0 ? 0 : padded - length;
    request.return_log_probabilities = fields.logprobs && !fields.beam_width;
    set_stops(request, model, fields);
    if (fields.beam_width) {
      request.max_new_tokens = std::min(padded, model.max_positions) - length;
      request.beams = BeamOptions{*fields.beam_width, fields.length_penalty};
      request.stop_tokens.clear();
      request.stop_sequences.clear();
      if (fields.stop_token) {
        request.stop_tokens = {*fields.stop_token};
      } else {
        request.stop_tokens = model.end_tokens;
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

json beams_answer(const ServedModel& model, const Request& request,
                  const std::vector<Hypothesis>& hypotheses) {
  json answer = {{"text", json::array()}, {"segments", json::array()}, {"scores", json::array()}};
  const auto length = request.prompt.size() + static_cast<size_t>(request.max_new_tokens);
  for (const Hypothesis& hypothesis : hypotheses) {
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), hypothesis.tokens.begin(), hypothesis.tokens.end());
    if (model.pads_beams && model.eod()) tokens.resize(length, *model.eod());
    answer["text"].push_back(model.tokenizer.decode(tokens));
    answer["segments"].push_back(segments_of(model.tokenizer, tokens));
    answer["scores"].push_back(static_cast<float>(hypothesis.score));
  }
  return answer;
}

// Releases `turn` after tokenization.
Answer answer_of(ServedModel& model, const Fields& fields, std::unique_lock<std::mutex> turn) {
  const std::vector<Request> requests = requests_of(model, fields);
  if (turn) turn.unlock();
  HttpServer::give_memory_back();
  std::vector<std::vector<int32_t>> tokens;
  tokens.reserve(requests.size());
  for (const Request& request : requests) tokens.push_back(request.prompt);
  json logprobs = json::array();
  for (size_t i = 0; i < requests.size(); ++i) logprobs.push_back(json::array());
  std::vector<Hypothesis> hypotheses;
  bool has_failed = false;
  const std::unique_ptr<Ticket> ticket = model.service.submit(requests);
  const Outcome outcome =
      each_event(model, *ticket, requests.size(), [&](const RequestEvent& event) {
        const RequestProgress& progress = event.progress;
        has_failed = progress.finish == Finish::kFailed;
        for (const double value : progress.prompt_log_probabilities) {
          logprobs[event.index].push_back(static_cast<float>(value));
        }
        if (progress.token) {
          tokens[event.index].push_back(*progress.token);
          if (fields.logprobs) {
            logprobs[event.index].push_back(static_cast<float>(progress.log_probability));
          }
        }
        if (!progress.hypotheses.empty()) hypotheses = progress.hypotheses;
        return !has_failed;
      });
  if (has_failed) throw Error(kNotANumber);
  if (outcome == Outcome::kTimeout) return message(503, "The request took too long");
  if (fields.beam_width) return {200, text_of(beams_answer(model, requests.front(), hypotheses))};
  json answer = {{"text", json::array()}, {"segments", json::array()}};
  for (const std::vector<int32_t>& row : tokens) {
    answer["text"].push_back(model.tokenizer.decode(row));
    answer["segments"].push_back(segments_of(model.tokenizer, row));
  }
  answer["logprobs"] = fields.logprobs ? logprobs : json();
  return {200, text_of(answer)};
}

}  // namespace

Answer megatron_api(ServedModel& model, const std::string& body, const std::string& content_type) {
  if (model.has_encoder()) {
    return message(400,
                   "PUT /api continues prompts, which a T5 does not: its encoder reads them. Use "
                   "POST /v1/completions");
  }
  if (!is_json(content_type)) {
    return message(415,
                   "Did not attempt to load JSON data because the request Content-Type was not "
                   "'application/json'.");
  }
  Fields fields;
  std::unique_lock<std::mutex> turn = HttpServer::turn(body);
  try {
    fields = checked_fields(parse_body(body));
  } catch (const Refusal& refused) {
    return refusal(model, refused);
  } catch (const JsonTooLarge& error) {
    return message(400, error.what());
  } catch (const FormatError&) {
    return message(400,
                   "The browser (or proxy) sent a request that this server could not understand.");
  }
  try {
    return answer_of(model, fields, std::move(turn));
  } catch (const Refusal& refused) {
    return refusal(model, refused);
  } catch (const ConfigError& error) {  // a limit of this server's own
    return refusal(model, Refusal(error.what()));
  } catch (const FormatError& error) {  // a text that the tokenizer does not take
    return refusal(model, Refusal(error.what()));
  } catch (const Overloaded& error) {
    return message(429, error.what());
  } catch (const Failed& error) {
    warn(fmt::format("PUT /api: 500, {}", printable(error.what())));
    return message(500, error.what());
  } catch (const Unavailable& error) {
    return message(503, error.what());
  } catch (const std::exception& error) {
    warn(fmt::format("PUT /api: 500, {}", printable(error.what())));
    return message(500, "Internal Server Error");
  }
}

}  // namespace megatron::serve
