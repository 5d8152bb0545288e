#include "megatron/serve/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <utility>

#include "megatron/device/philox.h"

namespace megatron::serve {
namespace {

using nlohmann::ordered_json;

// Different in every run of the server and for every answer.
std::string new_id(bool is_chat) {
  static const uint64_t run = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<uint64_t> count = 0;
  return fmt::format("{}-{:016x}", is_chat ? "chatcmpl" : "cmpl", mixed_key(run, count++));
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

size_t num_characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

ordered_json optional_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

}  // namespace

CompletionAnswer::CompletionAnswer(const ServedModel& model, const Completion& completion)
    : model_(model), completion_(completion), id_(new_id(completion.is_chat)), created_(now()) {
  for (size_t prompt = 0; prompt < completion.prompts.size(); ++prompt) {
    std::span<const int32_t> before;
    if (completion.continues_prompts()) before = completion.prompts[prompt];
    for (int64_t i = 0; i < completion.n; ++i) {
      choices_.push_back({TextStream(model.tokenizer, before, completion.stop_strings)});
      Choice& choice = choices_.back();
      if (!completion.echo) continue;
      choice.text = completion.prompt_texts[prompt];
      // The first token has no probability; the others come with the first event.
      if (completion.logprobs) {
        choice.token_logprobs.push_back(
            token_entry(choice, completion.prompts[prompt].front(), {}, {}));
      }
    }
  }
}

const std::vector<int32_t>& CompletionAnswer::prompt_of(size_t index) const {
  return completion_.prompts[index / static_cast<size_t>(completion_.n)];
}

size_t CompletionAnswer::num_open() const {
  size_t count = 0;
  for (const Choice& choice : choices_) count += choice.is_over ? 0 : 1;
  return count;
}

// What the interface tells of a token: for chats an object, else a list of the four columns.
ordered_json CompletionAnswer::token_entry(Choice& choice, int32_t token,
                                           std::optional<double> log_probability,
                                           const std::vector<TokenProbability>& top) const {
  const auto text_of = [&](int32_t id) { return model_.tokenizer.decode({&id, 1}); };
  const std::string text = text_of(token);
  const size_t offset = choice.num_offset;
  choice.num_offset += num_characters(text);
  if (completion_.is_chat) {
    const auto entry = [&](const std::string& token_text, const std::optional<double>& value) {
      return ordered_json{{"token", token_text},
                          {"logprob", optional_json(value)},
                          {"bytes", bytes_of(token_text)}};
    };
    ordered_json object = entry(text, log_probability);
    object["top_logprobs"] = ordered_json::array();
    for (const TokenProbability& one : top) {
      object["top_logprobs"].push_back(entry(text_of(one.token), one.log_probability));
    }
    return object;
  }
  ordered_json columns = {text, optional_json(log_probability), ordered_json(), offset};
  if (!top.empty()) {
    columns[2] = ordered_json::object();
    for (const TokenProbability& one : top) columns[2][text_of(one.token)] = one.log_probability;
    columns[2][text] = optional_json(log_probability);
  }
  return columns;
}

ordered_json CompletionAnswer::logprobs_of(const std::vector<ordered_json>& entries) const {
  if (!completion_.logprobs) return {};
  if (completion_.is_chat) return {{"content", entries}};
  ordered_json columns = {{"tokens", ordered_json::array()},
                          {"token_logprobs", ordered_json::array()},
                          {"top_logprobs", ordered_json::array()},
                          {"text_offset", ordered_json::array()}};
  for (const ordered_json& entry : entries) {
    columns["tokens"].push_back(entry[0]);
    columns["token_logprobs"].push_back(entry[1]);
    columns["top_logprobs"].push_back(entry[2]);
    columns["text_offset"].push_back(entry[3]);
  }
  return columns;
}

std::optional<ordered_json> CompletionAnswer::take(const Event& event) {
  Choice& choice = choices_[event.index];
  if (choice.is_over) return {};
  const RequestProgress& progress = event.progress;
  const size_t first_entry = choice.token_logprobs.size();
  if (completion_.echo && completion_.logprobs) {
    for (const double value : progress.prompt_log_probabilities) {
      const int32_t token = prompt_of(event.index)[choice.token_logprobs.size()];
      choice.token_logprobs.push_back(token_entry(choice, token, value, {}));
    }
  }
  std::string fresh;
  if (progress.token) {
    ++choice.num_tokens;
    const bool is_stop_token =
        progress.finish == Finish::kStop;  // says that the text ends, and is no part of it
    if (!is_stop_token) fresh = choice.stream.push(*progress.token);
    if (completion_.logprobs) {
      choice.token_logprobs.push_back(
          token_entry(choice, *progress.token, progress.log_probability, progress.top));
    }
  }
  if (choice.stream.is_stopped()) {
    choice.finish_reason = "stop";
  } else if (progress.finish != Finish::kNone) {
    fresh += choice.stream.finish();
    choice.finish_reason =
        progress.finish == Finish::kLength && !choice.stream.is_stopped() ? "length" : "stop";
  }
  choice.is_over = !choice.finish_reason.empty();
  choice.text += fresh;
  const std::vector<ordered_json> entries(
      choice.token_logprobs.begin() + static_cast<std::ptrdiff_t>(first_entry),
      choice.token_logprobs.end());
  if (fresh.empty() && entries.empty() && !choice.is_over) return {};

  ordered_json chunk = head(true);
  ordered_json part = {{"index", event.index}};
  if (completion_.is_chat) {
    part["delta"] = fresh.empty() ? ordered_json::object() : ordered_json{{"content", fresh}};
  } else {
    part["text"] = fresh;
  }
  part["logprobs"] = logprobs_of(entries);
  part["finish_reason"] = choice.is_over ? ordered_json(choice.finish_reason) : ordered_json();
  chunk["choices"] = ordered_json::array({part});
  if (completion_.include_usage) chunk["usage"] = nullptr;
  return chunk;
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
                           ? logprobs_of(choices_[index].token_logprobs)
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

ordered_json CompletionAnswer::whole() const {
  ordered_json answer = head(false);
  answer["choices"] = ordered_json::array();
  for (size_t index = 0; index < choices_.size(); ++index) {
    const Choice& choice = choices_[index];
    ordered_json part = {{"index", index}};
    if (completion_.is_chat) {
      part["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      part["text"] = choice.text;
    }
    part["logprobs"] = logprobs_of(choice.token_logprobs);
    part["finish_reason"] = choice.finish_reason;
    answer["choices"].push_back(part);
  }
  answer["usage"] = usage();
  return answer;
}

}  // namespace megatron::serve
