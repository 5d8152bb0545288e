#include "megatron/serve/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/json.h"
#include "megatron/core/printable.h"
#include "megatron/serve/chat_request.h"
#include "megatron/serve/json_schema.h"
#include "megatron/serve/request_body.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMaxChoices = 128;
constexpr int64_t kMaxTop = 20;
constexpr size_t kMaxStops = 16;

[[noreturn]] void refuse(const std::string& param, const std::string& message) {
  throw ApiError(400, fmt::format("{} {}", param, message), param);
}

// The value of a field; null counts as absent.
const json* given(const json& request, const char* name) {
  const auto place = request.find(name);
  return place == request.end() || place->is_null() ? nullptr : &*place;
}

int64_t int_of(const json& request, const char* name, int64_t fallback, int64_t least,
               int64_t most) {
  const json* value = given(request, name);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number_integer() && *value >= least && *value <= most;
  if (!fits) {
    refuse(name, fmt::format("{} must be an integer between {} and {}", shortened_json(*value),
                             least, most));
  }
  return value->get<int64_t>();
}

double number_of(const json& request, const char* name, double fallback, double least,
                 double most) {
  const json* value = given(request, name);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number() && *value >= least && *value <= most;
  if (!fits) {
    refuse(name, fmt::format("{} must be a number between {} and {}", shortened_json(*value), least,
                             most));
  }
  return value->get<double>();
}

bool bool_of(const json& request, const char* name) {
  const json* value = given(request, name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    refuse(name, fmt::format("{} must be true or false", shortened_json(*value)));
  }
  return value->get<bool>();
}

std::vector<std::string> texts_of(const json& request, const char* name, size_t most) {
  const json* value = given(request, name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  const bool is_list =
      value->is_array() && value->size() <= most &&
      std::all_of(value->begin(), value->end(), [](const json& one) { return one.is_string(); });
  if (!is_list) refuse(name, fmt::format("must be a string or a list of up to {} strings", most));
  return value->get<std::vector<std::string>>();
}

bool are_ids(const json& list) {
  return std::all_of(list.begin(), list.end(), [](const json& value) {
    return value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int32_t>::max();
  });
}

TextIds encoded_text(const ServedModel& model, const std::string& text) {
  require_room(model, text);
  std::vector<int32_t> ids = model.encoded(text);
  if (ids.empty() && model.empty_prompt()) ids = {*model.empty_prompt()};
  return {std::move(ids), text};
}

TextIds decoded_ids(const ServedModel& model, const char* name, const json& list) {
  auto ids = list.get<std::vector<int32_t>>();
  for (const int32_t id : ids) {
    if (id >= model.vocab_size) {
      refuse(name, fmt::format("has the token id {}, but the model's ids end at {}", id,
                               model.vocab_size - 1));
    }
  }
  std::string text = model.tokenizer.decode(ids);
  return {std::move(ids), std::move(text)};
}

void add_prompt(Completion& completion, TextIds text) {
  completion.prompts.push_back(std::move(text.ids));
  completion.prompt_texts.push_back(std::move(text.text));
}

// The ids of a prompt that has all special tokens: without those that the tokenizer adds to any
// text, as to the empty one.
std::vector<int32_t> ids_without_additions(const Tokenizer& tokenizer, const std::string& text,
                                           const std::string& begin) {
  const std::vector<int32_t> added = tokenizer.encode("");
  const bool has_begin =
      !added.empty() && added.front() == tokenizer.special_id(SpecialToken::kBos);
  const auto end = static_cast<int64_t>(added.size()) - (has_begin ? 1 : 0);
  const auto encoded = [&](std::string_view words) {
    std::vector<int32_t> ids = tokenizer.encode(words);
    ids.resize(ids.size() - static_cast<size_t>(end));
    return ids;
  };
  std::vector<int32_t> ids = encoded(text);
  if (!has_begin || ids.empty()) return ids;
  const bool writes_begin = !begin.empty() && text.starts_with(begin);
  const bool reads_begin = ids.size() > 1 && ids[1] == ids[0];
  // A tokenizer that reads special tokens as words.
  if (writes_begin && !reads_begin) return encoded(std::string_view(text).substr(begin.size()));
  ids.erase(ids.begin());
  return ids;
}

void take_messages(const ServedModel& model, const std::string& body, Completion& completion) {
  const ChatTemplate& chat_template = model.chat_template;
  std::string text = chat_prompt(chat_template, body);
  if (model.has_encoder() || !chat_template.writes_special_tokens()) {
    return add_prompt(completion, encoded_text(model, text));
  }
  require_room(model, text);
  completion.prompts.push_back(ids_without_additions(
      model.tokenizer, text, chat_template.special_token("bos_token").value_or("")));
  if (completion.prompts.back().empty()) {
    throw ApiError(400, "messages become an empty prompt in the chat template", "messages");
  }
  completion.prompt_texts.push_back(std::move(text));
}

void take_sampling(const json& request, const SamplingOptions& defaults,
                   SamplingOptions& sampling) {
  constexpr double kMost = 1e6;
  sampling.temperature = number_of(request, "temperature", defaults.temperature, 0.0, 100.0);
  const bool is_greedy = sampling.temperature == 0;
  if (is_greedy) sampling.temperature = 1.0;
  sampling.top_k = std::max<int64_t>(
      0, int_of(request, "top_k", defaults.top_k, -1, std::numeric_limits<int32_t>::max()));
  if (is_greedy) sampling.top_k = 1;
  const double top_p = defaults.top_p > 0 ? defaults.top_p : 1.0;
  sampling.top_p = number_of(request, "top_p", top_p, 0.0, 1.0);
  if (sampling.top_p == 0) refuse("top_p", "0 must be above 0");
  if (sampling.top_p == 1) sampling.top_p = 0;  // all tokens compete
  sampling.min_p = number_of(request, "min_p", defaults.min_p, 0.0, 1.0);
  sampling.repetition_penalty =
      number_of(request, "repetition_penalty", defaults.repetition_penalty, 1e-6, kMost);
  sampling.presence_penalty = number_of(request, "presence_penalty", 0.0, -2.0, 2.0);
  sampling.frequency_penalty = number_of(request, "frequency_penalty", 0.0, -2.0, 2.0);
  const json* bias = given(request, "logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) refuse("logit_bias", "must be an object from token ids to numbers");
  for (const auto& [key, value] : bias->items()) {
    const bool is_id =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const bool is_number = value.is_number() && value >= -100 && value <= 100;
    if (!is_id || !is_number) {
      refuse("logit_bias", "must be an object from token ids to numbers between -100 and 100");
    }
    sampling.logit_bias.emplace_back(std::stoi(key), value.get<double>());
  }
}

void take_logprobs(const json& request, Completion& completion) {
  if (!completion.is_chat) {
    completion.num_top = int_of(request, "logprobs", -1, 0, kMaxTop);
    completion.logprobs = completion.num_top >= 0;
    completion.num_top = std::max<int64_t>(0, completion.num_top);
    return;
  }
  completion.logprobs = bool_of(request, "logprobs");
  completion.num_top = int_of(request, "top_logprobs", 0, 0, kMaxTop);
  if (completion.num_top > 0 && !completion.logprobs) {
    refuse("top_logprobs", "needs logprobs to be true");
  }
}

void take_stops(const ServedModel& model, const json& request, Completion& completion) {
  completion.stop_strings = texts_of(request, "stop", kMaxStops);
  if (completion.is_chat) {
    const std::vector<std::string>& stops = model.chat_template.stops();
    completion.stop_strings.insert(completion.stop_strings.end(), stops.begin(), stops.end());
  }
  if (const json* ids = given(request, "stop_token_ids")) {
    if (!ids->is_array() || !are_ids(*ids)) refuse("stop_token_ids", "must be a list of token ids");
    completion.base.stop_tokens = ids->get<std::vector<int32_t>>();
  }
  if (!bool_of(request, "ignore_eos")) {
    std::vector<int32_t>& stops = completion.base.stop_tokens;
    stops.insert(stops.end(), model.end_tokens.begin(), model.end_tokens.end());
  }
}

void take_length(const ServedModel& model, const json& request, Completion& completion) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  size_t longest = 0;
  for (const auto& prompt : completion.prompts) longest = std::max(longest, prompt.size());
  if (!completion.continues_prompts()) longest = completion.base.prompt.size();
  const int64_t room = model.max_positions - static_cast<int64_t>(longest);
  const char* const name =
      given(request, "max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  const int64_t fallback = completion.is_chat ? std::clamp<int64_t>(room, 1, 4096) : 16;
  // max_tokens may be 0, for scoring the prompt, only with echo.
  const int64_t least = completion.echo ? 0 : 1;
  completion.base.max_new_tokens = int_of(request, name, fallback, least, kMost);
  if (completion.base.max_new_tokens > room) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens. However, you "
                               "requested {} tokens ({} in the prompt, {} in the completion). "
                               "Please reduce the length of the prompt or the completion.",
                               model.max_positions,
                               static_cast<int64_t>(longest) + completion.base.max_new_tokens,
                               longest, completion.base.max_new_tokens),
                   "messages", "context_length_exceeded");
  }
  completion.base.min_new_tokens =
      int_of(request, "min_tokens", 0, 0, completion.base.max_new_tokens);
}

// The form that a field demands of the response; null for any text.
PatternPtr pattern_of_field(const std::string& name, const jinja::Value& field) {
  const auto text = [&](const jinja::Value& value) -> const std::string& {
    if (value.text() == nullptr) throw ConfigError("must be a string");
    return *value.text();
  };
  if (name == "guided_regex") return pattern_of_regex(text(field));
  if (name == "guided_choice") {
    std::vector<PatternPtr> options;
    for (const jinja::Value& one : jinja::elements_of(field)) options.push_back(literal(text(one)));
    if (options.empty()) throw ConfigError("must be a list of at least one string");
    return choice(std::move(options));
  }
  if (name == "guided_json") {
    return pattern_of_schema(field.text() == nullptr ? field : jinja::value_of_json(*field.text()));
  }
  const jinja::Mapping* format = field.mapping();
  const jinja::Value* type = format == nullptr ? nullptr : format->find("type");
  if (type != nullptr && jinja::text_of(*type) == "text") return nullptr;
  if (type != nullptr && jinja::text_of(*type) == "json_object") return any_json_object();
  const jinja::Value* outer = format == nullptr ? nullptr : format->find("json_schema");
  const jinja::Value* schema =
      outer == nullptr || outer->mapping() == nullptr ? nullptr : outer->mapping()->find("schema");
  if (type == nullptr || jinja::text_of(*type) != "json_schema" || schema == nullptr) {
    throw ConfigError("must have the type text, json_object or json_schema with its schema");
  }
  return pattern_of_schema(*schema);
}

// The tools that a response must call one of: tool_choice "required", or a function by its name.
std::vector<std::string> demanded_tools(const json& request, const Completion& completion) {
  const json* wanted = given(request, "tool_choice");
  if (wanted == nullptr || *wanted == "auto" || *wanted == "none") return {};
  const bool is_any = *wanted == "required";
  const bool is_function = wanted->is_object() && wanted->value("type", json()) == "function" &&
                           wanted->contains("function") && (*wanted)["function"].is_object() &&
                           (*wanted)["function"].value("name", json()).is_string();
  if (!is_any && !is_function) {
    refuse("tool_choice",
           "must be auto, none, required or an object of type function with its name");
  }
  if (completion.tools.empty()) refuse("tool_choice", "needs tools");
  if (is_any) return completion.tools;
  const auto& name = (*wanted)["function"]["name"].get_ref<const std::string&>();
  if (std::ranges::find(completion.tools, name) == completion.tools.end()) {
    refuse("tool_choice", fmt::format("{} is none of the tools", shortened(name)));
  }
  return {name};
}

// The names of a chat's tools, which chat_prompt() has checked, and how calls are read.
void take_tools(const ServedModel& model, const json& request, Completion& completion) {
  const json* tools = given(request, "tools");
  const json* wanted = given(request, "tool_choice");
  if (tools != nullptr && (wanted == nullptr || *wanted != "none")) {
    for (const json& tool : *tools) completion.tools.push_back(tool["function"]["name"]);
  }
  if (!completion.tools.empty()) {
    completion.tool_calls = model.tool_calls.value_or(model.chat_template.tool_calls());
  }
  if (const json* is_parallel = given(request, "parallel_tool_calls")) {
    if (!is_parallel->is_boolean()) refuse("parallel_tool_calls", "must be true or false");
    completion.has_parallel_calls = is_parallel->get<bool>();
  }
}

// A call of one of the tools as a JSON object, with arguments of its schema.
PatternPtr pattern_of_calls(const std::vector<std::string>& names, const jinja::Value& body) {
  std::vector<PatternPtr> options;
  for (const jinja::Value& tool : jinja::elements_of(*body.mapping()->find("tools"))) {
    const jinja::Mapping& function = *tool.mapping()->find("function")->mapping();
    const std::string& name = *function.find("name")->text();
    if (std::ranges::find(names, name) == names.end()) continue;
    const jinja::Value* schema = function.find("parameters");
    const bool has_schema = schema != nullptr && !schema->is_none();
    options.push_back(
        sequence({literal(fmt::format("{{\"name\": {}, \"arguments\": ", json(name).dump())),
                  has_schema ? pattern_of_schema(*schema) : any_json_object(), literal("}")}));
  }
  return choice(std::move(options));
}

// response_format of OpenAI, and guided_json, guided_regex and guided_choice of vLLM.
void take_form(ServedModel& model, const json& request, const std::string& body,
               Completion& completion) {
  constexpr size_t kMaxForm = 64 << 10;  // bytes of the field
  std::string name;
  for (const char* one : {"response_format", "guided_json", "guided_regex", "guided_choice"}) {
    if (given(request, one) == nullptr) continue;
    if (!name.empty()) refuse(one, "cannot be combined with " + name);
    name = one;
  }
  const std::vector<std::string> tools = demanded_tools(request, completion);
  if (!tools.empty()) {
    if (!name.empty()) refuse("tool_choice", "cannot be combined with " + name);
    name = "tools";
    completion.tool_calls = ToolCallFormat::kJson;
  }
  if (name.empty()) return;
  if (dump_json(*given(request, name.c_str())).size() > kMaxForm) {
    refuse(name, fmt::format("has more than {} bytes", kMaxForm));
  }
  try {
    // In the body properties have their order.
    const jinja::Value fields = jinja::value_of_json(body);
    const PatternPtr pattern = tools.empty() ? pattern_of_field(name, *fields.mapping()->find(name))
                                             : pattern_of_calls(tools, fields);
    if (pattern == nullptr) return;
    if (model.service.model().parallel.pipeline.size() > 1) {
      refuse(name, "is not available with pipeline stages");
    }
    std::vector<int32_t> ends = model.end_tokens;
    std::erase_if(ends, [&](int32_t id) { return id >= model.vocab_size; });
    if (ends.empty() || bool_of(request, "ignore_eos")) {
      refuse(name, "needs an end token of the model, and ignore_eos to be false");
    }
    completion.base.constraint =
        std::make_shared<TokenGuide>(model.token_texts(), *pattern, std::move(ends));
    completion.base.is_constrained = true;
  } catch (const ConfigError& error) {
    refuse(name, error.what());
  } catch (const FormatError& error) {
    refuse(name, error.what());
  } catch (const jinja::Fault& error) {
    refuse(name, error.what());
  }
}

void refuse_what_is_missing(const json& request, bool is_chat) {
  for (const char* name : {"tools", "functions", "chat_template", "suffix", "audio",
                           "guided_grammar", "structured_outputs"}) {
    const json* value = given(request, name);
    if (is_chat && name == std::string_view("tools")) continue;
    if (value == nullptr || value->empty() || *value == "") continue;
    refuse(name, "is not available in this server; leave it out");
  }
}

}  // namespace

ApiError::ApiError(int the_status, const std::string& message, std::string the_param,
                   std::string the_code)
    : std::runtime_error(message),
      status(the_status),
      param(std::move(the_param)),
      code(std::move(the_code)) {}

std::string ApiError::body() const {
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  nlohmann::ordered_json error;
  error["message"] = what();
  error["type"] = type;
  error["param"] = param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param);
  error["code"] = code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(code);
  const nlohmann::ordered_json body = {{"error", error}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

json object_of(const std::string& body) {
  json value;
  try {
    value = parse_body(body);
  } catch (const JsonTooLarge& error) {
    throw ApiError(400, error.what());
  } catch (const FormatError&) {
    throw ApiError(400, "the body is not valid JSON in UTF-8");
  }
  if (!value.is_object()) throw ApiError(400, "the body must be a JSON object");
  return value;
}

void require_model(const ServedModel& model, const json& request) {
  const json* name = given(request, "model");
  if (name == nullptr) return;
  if (!name->is_string()) refuse("model", "must be a string");
  if (name->get_ref<const std::string&>() == model.name) return;
  throw ApiError(404,
                 fmt::format("The model `{}` does not exist; this server has `{}`",
                             shortened(name->get_ref<const std::string&>()), model.name),
                 "model", "model_not_found");
}

void require_room(const ServedModel& model, const std::string& text) {
  if (!model.may_hold(text)) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens. However, your "
                               "prompt has {} bytes. Please reduce the length of the prompt.",
                               model.max_positions, text.size()),
                   "messages", "context_length_exceeded");
  }
}

std::vector<TextIds> texts_of_field(const ServedModel& model, const json& request, const char* name,
                                    int64_t most) {
  const json* field = given(request, name);
  const char* const rule = "must be a string, a list of strings, of token ids or of lists of them";
  if (field == nullptr) refuse(name, "is missing; " + std::string("it ") + rule);
  if (field->is_string()) return {encoded_text(model, field->get<std::string>())};
  if (!field->is_array() || field->empty()) refuse(name, rule);
  if (field->size() > static_cast<size_t>(most) && !field->front().is_number()) {
    refuse(name, fmt::format("has {} texts; at most {} are allowed", field->size(), most));
  }
  if (field->front().is_number()) {
    if (!are_ids(*field)) refuse(name, rule);
    return {decoded_ids(model, name, *field)};
  }
  std::vector<TextIds> texts;
  for (const json& one : *field) {
    if (one.is_string()) {
      texts.push_back(encoded_text(model, one.get<std::string>()));
    } else if (one.is_array() && !one.empty() && are_ids(one)) {
      texts.push_back(decoded_ids(model, name, one));
    } else {
      refuse(name, rule);
    }
  }
  return texts;
}

Completion completion_of(ServedModel& model, const std::string& body, bool is_chat) {
  json request = object_of(body);
  Completion completion;
  completion.is_chat = is_chat;
  require_model(model, request);
  if (model.is_bert()) {
    throw ApiError(400, "the model is a BERT, which continues no text; use /v1/embeddings",
                   "model");
  }
  refuse_what_is_missing(request, is_chat);
  if (is_chat) {
    // The template gets values of its own, with keys in their order.
    for (const char* name : {"messages", "documents", "chat_template_kwargs"}) request.erase(name);
    take_messages(model, body, completion);
    take_tools(model, request, completion);
  } else {
    for (TextIds& text : texts_of_field(model, request, "prompt", kMaxChoices)) {
      add_prompt(completion, std::move(text));
    }
    completion.echo = bool_of(request, "echo");
  }
  if (model.has_encoder()) {
    completion.base.prompt = {*model.decoder_start};
    if (completion.echo)
      refuse("echo", "is not available for a T5: its texts do not continue the prompt");
  }
  take_sampling(request, model.sampling, completion.base.sampling);
  take_logprobs(request, completion);
  take_stops(model, request, completion);
  take_form(model, request, body, completion);
  take_length(model, request, completion);
  completion.returned = int_of(request, "n", 1, 1, kMaxChoices);
  completion.n = int_of(request, "best_of", completion.returned, 1, kMaxChoices);
  const bool ranks_choices = completion.n > completion.returned;
  if (completion.n < completion.returned) refuse("best_of", "must be n or more");
  if (completion.n * static_cast<int64_t>(completion.prompts.size()) > kMaxChoices) {
    refuse("n", fmt::format("{} for {} prompts are more than {} choices", completion.n,
                            completion.prompts.size(), kMaxChoices));
  }
  completion.stream = bool_of(request, "stream");
  if (completion.stream && ranks_choices) {
    refuse("best_of", "must equal n in a stream: the best choices are known at the end");
  }
  if (const json* options = given(request, "stream_options")) {
    if (!options->is_object()) refuse("stream_options", "must be an object");
    completion.include_usage = bool_of(*options, "include_usage");
  }
  const int64_t seed = int_of(request, "seed", -1, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max());
  completion.base.seed =
      given(request, "seed") == nullptr ? model.next_seed() : static_cast<uint64_t>(seed);
  completion.base.vocab_size = model.vocab_size;
  completion.base.return_log_probabilities = completion.logprobs || ranks_choices;
  completion.base.scores_prompt = completion.echo;
  completion.base.num_top = completion.num_top;
  return completion;
}

std::vector<Request> requests_of(const Completion& completion) {
  std::vector<Request> requests;
  for (const auto& prompt : completion.prompts) {
    for (int64_t i = 0; i < completion.n; ++i) {
      requests.push_back(completion.base);
      (completion.continues_prompts() ? requests.back().prompt : requests.back().text) = prompt;
      requests.back().row = static_cast<int64_t>(requests.size()) - 1;
    }
  }
  return requests;
}

}  // namespace megatron::serve
