#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/inference/text_stream.h"
#include "megatron/serve/openai_request.h"
#include "megatron/serve/tool_calls.h"

namespace megatron::serve {

// Converts the events of a completion into OpenAI's response objects: one response, or chunks of a
// stream.
class CompletionAnswer {
 public:
  using json = nlohmann::ordered_json;

  CompletionAnswer(const ServedModel& model, const Completion& completion);
  ~CompletionAnswer();

  // The first chunks of a stream, before any event.
  std::vector<json> first_chunks() const;
  // Processes an event; returns a chunk for a stream, if any. Then is_over() is true if the choice
  // needs no further tokens although the engine would draw some (a stop string).
  std::optional<json> take(const RequestEvent& event);
  bool is_over(size_t index) const;
  size_t num_open() const;

  // The whole response, or the last chunk of a stream with include_usage.
  json whole() const;
  json usage_chunk() const;

 private:
  struct Entry;
  struct Choice;
  struct Place;
  struct Call;
  json delta_of(Choice& choice, const std::string& fresh) const;
  json head(bool is_chunk) const;
  json usage() const;
  std::vector<size_t> returned_choices() const;
  json logprobs_of(std::span<const Entry> entries) const;
  json token_entry(const Place& place, std::optional<double> log_probability,
                   std::span<const TokenProbability> top) const;
  void place_prompt(size_t prompt);
  void take_prompt(Choice& choice, size_t prompt, const RequestProgress& progress) const;
  std::string take_token(Choice& choice, size_t prompt, const RequestProgress& progress) const;
  std::span<const Entry> ready_entries(Choice& choice) const;
  size_t prompt_of(size_t index) const { return index / static_cast<size_t>(completion_.n); }

  const ServedModel& model_;
  const Completion& completion_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  std::vector<std::vector<Place>> prompts_;  // for echo with logprobs
};

}  // namespace megatron::serve
