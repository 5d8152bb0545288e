#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/inference/text_stream.h"
#include "megatron/serve/openai_request.h"

namespace megatron::serve {

// Turns the events of a completion into the objects that OpenAI's clients read, as one answer or as
// chunks of a stream.
class CompletionAnswer {
 public:
  using json = nlohmann::ordered_json;

  CompletionAnswer(const ServedModel& model, const Completion& completion);

  // Before the first event: the chunks that begin a stream.
  std::vector<json> first_chunks() const;
  // Takes an event. A chunk for a stream, or nothing yet. After it, is_over() tells whether the
  // choice needs no further tokens although the engine would draw some (a stop string).
  std::optional<json> take(const RequestEvent& event);
  bool is_over(size_t index) const { return choices_[index].is_over; }
  size_t num_open() const;

  // The whole answer, or the last chunk of a stream with include_usage.
  json whole() const;
  json usage_chunk() const;

 private:
  // What the interface tells of a token: for chats an object, else a list of the four columns.
  struct Entry {
    json value;
    int64_t begin = -1;  // characters drawn before the token's; below 0: it is the prompt's
  };
  struct Choice {
    TextStream stream;
    std::string text = {};
    size_t num_tokens = 0;
    std::vector<Entry> entries = {};  // of tokens
    size_t num_given = 0;             // entries, with the text of their tokens
    size_t next_forced = 1;           // token of the prompt
    std::string finish_reason = {};
    bool is_over = false;
  };
  // A token and where it stands in the choice's text.
  struct Place {
    int32_t token = 0;
    int64_t offset = 0;                     // in characters
    std::optional<std::string> bytes = {};  // none: it ends the text and is no part of it
  };
  json head(bool is_chunk) const;
  json usage() const;
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
