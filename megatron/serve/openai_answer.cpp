#include "megatron/serve/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "megatron/device/philox.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::serve {
namespace {

using nlohmann::ordered_json;

// A response id, unique across runs of the server.
std::string new_id(bool is_chat) {
  static const uint64_t run = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<uint64_t> count = 0;
  return fmt::format("{}-{:016x}", is_chat ? "chatcmpl" : "cmpl", mixed_key(run, count++));
}

// Templates of Mistral want ids of nine letters and digits.
std::string new_call_id(ToolCallFormat format) {
  const std::string id = new_id(false).substr(5);
  return format == ToolCallFormat::kMistral ? id.substr(id.size() - 9) : "call_" + id;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ordered_json bytes_of(const std::string& text) {
  ordered_json bytes = ordered_json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

ordered_json optional_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

}  // namespace

// What the interface tells of a token: for chats an object, else a list of the four columns.
// NOLINTNEXTLINE(bugprone-exception-escape): moving JSON does not throw
struct CompletionAnswer::Entry {
  json value;
  int64_t begin = -1;  // characters drawn before the token's; below 0: it is the prompt's
};

// A call of a tool.
struct CompletionAnswer::Call {
  std::string id;
  std::string name;
  std::string arguments = {};

  ordered_json value() const {
    return {
        {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
  }
};

struct CompletionAnswer::Choice {
  TextStream stream;
  std::string text = {};
  size_t num_tokens = 0;
  double log_probability = 0;       // of all tokens, if it is known
  std::vector<Entry> entries = {};  // of tokens
  size_t num_given = 0;             // entries, with the text of their tokens
  size_t next_forced = 1;           // token of the prompt
  std::string finish_reason = {};
  bool is_over = false;
  std::optional<ToolCallReader> reader = {};
  std::vector<Call> calls = {};
  bool drops_call = false;  // the current one
};

// A token and where it stands in the choice's text.
struct CompletionAnswer::Place {
  int32_t token = 0;
  int64_t offset = 0;                     // in characters
  std::optional<std::string> bytes = {};  // none: it ends the text and is no part of it
};

CompletionAnswer::CompletionAnswer(const ServedModel& model, const Completion& completion)
    : model_(model), completion_(completion), id_(new_id(completion.is_chat)), created_(now()) {
  for (size_t prompt = 0; prompt < completion.prompts.size(); ++prompt) {
    std::span<const int32_t> before;
    if (completion.continues_prompts()) before = completion.prompts[prompt];
    if (completion.echo && completion.logprobs) place_prompt(prompt);
    for (int64_t i = 0; i < completion.n; ++i) {
      choices_.push_back({TextStream(model.tokenizer, before, completion.stop_strings)});
      Choice& choice = choices_.back();
      if (completion.tool_calls != ToolCallFormat::kNone) {
        choice.reader.emplace(completion.tool_calls, completion.tools);
      }
      if (!completion.echo) continue;
      choice.text = completion.prompt_texts[prompt];
      // The first token has no probability; the others come with the first events.
      if (!completion.logprobs) continue;
      choice.entries.push_back({token_entry(prompts_[prompt].front(), {}, {})});
      choice.num_given = 1;
    }
  }
}

CompletionAnswer::~CompletionAnswer() = default;

bool CompletionAnswer::is_over(size_t index) const { return choices_[index].is_over; }

// Locates the tokens of a prompt in its text, which may lack the prefix that the tokenizer adds.
void CompletionAnswer::place_prompt(size_t prompt) {
  const int64_t length = num_characters(completion_.prompt_texts[prompt]);
  std::vector<Place>& places = prompts_.emplace_back();
  TextStream stream(model_.tokenizer, {});
  std::string text;
  for (const int32_t token : completion_.prompts[prompt]) {
    text += stream.push(token);
    places.push_back({token, stream.last_begin(), stream.last_bytes()});
  }
  text += stream.finish();
  const bool has_more_before = text.ends_with(completion_.prompt_texts[prompt]);
  const int64_t more = has_more_before ? num_characters(text) - length : 0;
  for (Place& place : places) {
    place.offset = std::clamp<int64_t>(place.offset - more, 0, length);
  }
}

size_t CompletionAnswer::num_open() const {
  size_t count = 0;
  for (const Choice& choice : choices_) count += choice.is_over ? 0 : 1;
  return count;
}

ordered_json CompletionAnswer::token_entry(const Place& place,
                                           std::optional<double> log_probability,
                                           std::span<const TokenProbability> top) const {
  const auto bytes_of_token = [&](int32_t token) {
    return token == place.token && place.bytes ? *place.bytes : model_.tokenizer.token_bytes(token);
  };
  const auto text_of = [&](int32_t token) { return with_valid_utf8(bytes_of_token(token)); };
  if (completion_.is_chat) {
    const auto entry = [&](int32_t token, const std::optional<double>& value, bool has_bytes) {
      return ordered_json{{"token", text_of(token)},
                          {"logprob", optional_json(value)},
                          {"bytes", has_bytes ? bytes_of(bytes_of_token(token)) : ordered_json()}};
    };
    ordered_json object = entry(place.token, log_probability, place.bytes.has_value());
    object["top_logprobs"] = ordered_json::array();
    for (const TokenProbability& one : top) {
      const bool is_end = one.token == place.token && !place.bytes;
      object["top_logprobs"].push_back(entry(one.token, one.log_probability, !is_end));
    }
    return object;
  }
  const std::string text = text_of(place.token);
  ordered_json columns = {text, optional_json(log_probability), ordered_json(), place.offset};
  if (!top.empty()) {
    // Tokens that are parts of characters have the same text: keeps the most probable one.
    ordered_json& by_text = columns[2] = ordered_json::object();
    for (const TokenProbability& one : top)
      by_text.emplace(text_of(one.token), one.log_probability);
    by_text.emplace(text, optional_json(log_probability));
  }
  return columns;
}

ordered_json CompletionAnswer::logprobs_of(std::span<const Entry> entries) const {
  if (!completion_.logprobs) return {};
  if (completion_.is_chat) {
    ordered_json content = ordered_json::array();
    for (const Entry& entry : entries) content.push_back(entry.value);
    return {{"content", content}};
  }
  ordered_json columns = {{"tokens", ordered_json::array()},
                          {"token_logprobs", ordered_json::array()},
                          {"top_logprobs", ordered_json::array()},
                          {"text_offset", ordered_json::array()}};
  for (const Entry& entry : entries) {
    columns["tokens"].push_back(entry.value[0]);
    columns["token_logprobs"].push_back(entry.value[1]);
    columns["top_logprobs"].push_back(entry.value[2]);
    columns["text_offset"].push_back(entry.value[3]);
  }
  return columns;
}

void CompletionAnswer::take_prompt(Choice& choice, size_t prompt,
                                   const RequestProgress& progress) const {
  if (!completion_.echo || !completion_.logprobs) return;
  const std::span<const TokenProbability> top = progress.prompt_top;
  const std::vector<double>& values = progress.prompt_log_probabilities;
  const size_t num_top = values.empty() ? 0 : top.size() / values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const Place& place = prompts_[prompt][choice.next_forced++];
    choice.entries.push_back({token_entry(place, values[i], top.subspan(i * num_top, num_top))});
  }
}

// The text that has become final.
std::string CompletionAnswer::take_token(Choice& choice, size_t prompt,
                                         const RequestProgress& progress) const {
  ++choice.num_tokens;
  choice.log_probability += progress.log_probability;
  // A stop token ends the text and is not part of it.
  const bool is_end = progress.finish == Finish::kStop;
  std::string fresh;
  if (is_end) {
    fresh = choice.stream.finish();
  } else {
    fresh = choice.stream.push(*progress.token);
  }
  if (!completion_.logprobs) return fresh;
  Place place = {*progress.token, is_end ? choice.stream.num_given() : choice.stream.last_begin()};
  if (!is_end) place.bytes = choice.stream.last_bytes();
  const int64_t begin = place.offset;
  if (completion_.echo) place.offset += num_characters(completion_.prompt_texts[prompt]);
  choice.entries.push_back({token_entry(place, progress.log_probability, progress.top), begin});
  return fresh;
}

// The entries of tokens whose text has been returned since the last call. Later ones wait; those
// after the end of the text are dropped.
std::span<const CompletionAnswer::Entry> CompletionAnswer::ready_entries(Choice& choice) const {
  const TextStream& stream = choice.stream;
  const auto has_text = [&](const Entry& entry) { return entry.begin < stream.num_given(); };
  std::vector<Entry>& all = choice.entries;
  size_t end = all.size();
  if (stream.is_stopped() || !stream.has_given_all()) {
    while (end > choice.num_given && !has_text(all[end - 1])) --end;
  }
  if (stream.is_stopped()) all.resize(end);
  const size_t begin = std::exchange(choice.num_given, end);
  return std::span(all).subspan(begin, end - begin);
}

std::optional<ordered_json> CompletionAnswer::take(const RequestEvent& event) {
  Choice& choice = choices_[event.index];
  if (choice.is_over) return {};
  const RequestProgress& progress = event.progress;
  const size_t prompt = prompt_of(event.index);
  take_prompt(choice, prompt, progress);
  std::string fresh;
  if (progress.token) fresh = take_token(choice, prompt, progress);
  if (choice.stream.is_stopped()) {
    choice.finish_reason = "stop";
  } else if (progress.finish != Finish::kNone) {
    fresh += choice.stream.finish();
    choice.finish_reason =
        progress.finish == Finish::kLength && !choice.stream.is_stopped() ? "length" : "stop";
  }
  choice.is_over = !choice.finish_reason.empty();
  ordered_json delta;
  if (completion_.is_chat) {
    delta = delta_of(choice, fresh);
  } else {
    choice.text += fresh;
  }
  const std::span<const Entry> entries = ready_entries(choice);
  const bool is_empty = completion_.is_chat ? delta.empty() : fresh.empty();
  if (is_empty && entries.empty() && !choice.is_over) return {};

  ordered_json chunk = head(true);
  ordered_json part = {{"index", event.index}};
  if (completion_.is_chat) {
    part["delta"] = std::move(delta);
  } else {
    part["text"] = fresh;
  }
  part["logprobs"] = logprobs_of(entries);
  part["finish_reason"] = choice.is_over ? ordered_json(choice.finish_reason) : ordered_json();
  chunk["choices"] = ordered_json::array({part});
  if (completion_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

// The delta of new text of a chat: content, and calls of tools.
ordered_json CompletionAnswer::delta_of(Choice& choice, const std::string& fresh) const {
  ordered_json delta = ordered_json::object();
  if (!choice.reader) {
    choice.text += fresh;
    if (!fresh.empty()) delta["content"] = fresh;
    return delta;
  }
  std::vector<ToolCallEvent> events = choice.reader->push(fresh);
  if (choice.is_over) std::ranges::move(choice.reader->finish(), std::back_inserter(events));
  std::string content;
  ordered_json calls = ordered_json::array();
  for (const ToolCallEvent& event : events) {
    content += event.content;
    if (event.name) {
      choice.drops_call = !completion_.has_parallel_calls && !choice.calls.empty();
      if (!choice.drops_call) {
        choice.calls.push_back({new_call_id(completion_.tool_calls), *event.name});
        calls.push_back({{"index", choice.calls.size() - 1}});
        calls.back().update(choice.calls.back().value());
      }
    }
    if (event.arguments.empty() || choice.drops_call) continue;
    choice.calls.back().arguments += event.arguments;
    if (calls.empty() || calls.back()["index"] != choice.calls.size() - 1) {
      calls.push_back({{"index", choice.calls.size() - 1}, {"function", {{"arguments", ""}}}});
    }
    auto& arguments = calls.back()["function"]["arguments"].get_ref<std::string&>();
    arguments += event.arguments;
  }
  choice.text += content;
  if (!content.empty()) delta["content"] = content;
  if (!calls.empty()) delta["tool_calls"] = std::move(calls);
  if (choice.finish_reason == "stop" && !choice.calls.empty()) choice.finish_reason = "tool_calls";
  return delta;
}

ordered_json CompletionAnswer::head(bool is_chunk) const {
  const char* object = !completion_.is_chat ? "text_completion"
                       : is_chunk           ? "chat.completion.chunk"
                                            : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

std::vector<ordered_json> CompletionAnswer::first_chunks() const {
  std::vector<ordered_json> chunks;
  if (!completion_.is_chat && !completion_.echo) return chunks;
  for (size_t index = 0; index < choices_.size(); ++index) {
    ordered_json part = {{"index", index}};
    if (completion_.is_chat) {
      part["delta"] = {{"role", "assistant"}, {"content", ""}};
    } else {
      part["text"] = choices_[index].text;
    }
    part["logprobs"] = completion_.logprobs && completion_.echo
                           ? logprobs_of(choices_[index].entries)
                           : ordered_json();
    part["finish_reason"] = nullptr;
    chunks.push_back(head(true));
    chunks.back()["choices"] = ordered_json::array({part});
    if (completion_.include_usage) chunks.back()["usage"] = nullptr;
  }
  return chunks;
}

ordered_json CompletionAnswer::usage() const {
  size_t prompt_tokens = 0;
  for (const auto& prompt : completion_.prompts) prompt_tokens += prompt.size();
  size_t tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.num_tokens;
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", tokens},
          {"total_tokens", prompt_tokens + tokens}};
}

ordered_json CompletionAnswer::usage_chunk() const {
  ordered_json chunk = head(true);
  chunk["choices"] = ordered_json::array();
  chunk["usage"] = usage();
  return chunk;
}

// The best of each prompt's choices.
std::vector<size_t> CompletionAnswer::returned_choices() const {
  std::vector<size_t> places(choices_.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (completion_.returned == completion_.n) return places;
  const auto mean = [&](size_t place) {
    const Choice& choice = choices_[place];
    return choice.log_probability / static_cast<double>(std::max<size_t>(1, choice.num_tokens));
  };
  std::vector<size_t> best;
  for (auto begin = places.begin(); begin != places.end(); begin += completion_.n) {
    std::stable_sort(begin, begin + completion_.n,
                     [&](size_t a, size_t b) { return mean(a) > mean(b); });
    best.insert(best.end(), begin, begin + completion_.returned);
  }
  return best;
}

ordered_json CompletionAnswer::whole() const {
  ordered_json answer = head(false);
  answer["choices"] = ordered_json::array();
  for (const size_t place : returned_choices()) {
    const Choice& choice = choices_[place];
    ordered_json part = {{"index", answer["choices"].size()}};
    if (completion_.is_chat) {
      part["message"] = {{"role", "assistant"}, {"content", choice.text}};
      if (!choice.calls.empty()) {
        if (choice.text.empty()) part["message"]["content"] = nullptr;
        for (const Call& call : choice.calls) part["message"]["tool_calls"].push_back(call.value());
      }
    } else {
      part["text"] = choice.text;
    }
    part["logprobs"] = logprobs_of(choice.entries);
    part["finish_reason"] = choice.finish_reason;
    answer["choices"].push_back(part);
  }
  answer["usage"] = usage();
  return answer;
}

}  // namespace megatron::serve
