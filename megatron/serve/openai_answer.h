#pragma once

#include <memory>
#include <nlohmann/json.hpp>
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
  std::optional<json> take(const Event& event);
  bool is_over(size_t index) const { return choices_[index].is_over; }
  size_t num_open() const;

  // The whole answer, or the last chunk of a stream with include_usage.
  json whole() const;
  json usage_chunk() const;

 private:
  struct Choice {
    TextStream stream;
    std::string text = {};
    size_t num_tokens = 0;
    std::vector<json> token_logprobs = {};  // an entry a token, as the interface wants them
    size_t num_offset = 0;                  // characters of text before the next token's
    std::string finish_reason = {};
    bool is_over = false;
  };
  json head(bool is_chunk) const;
  json usage() const;
  json logprobs_of(const std::vector<json>& entries) const;
  json token_entry(Choice& choice, int32_t token, std::optional<double> log_probability,
                   const std::vector<TokenProbability>& top) const;
  const std::vector<int32_t>& prompt_of(size_t index) const;

  const ServedModel& model_;
  const Completion& completion_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
};

}  // namespace megatron::serve
