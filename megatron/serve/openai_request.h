#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/serve/served_model.h"

namespace megatron::serve {

// An error in OpenAI's format.
class ApiError : public std::runtime_error {
 public:
  ApiError(int the_status, const std::string& message, std::string the_param = {},
           std::string the_code = {});
  // {"error": {"message", "type", "param", "code"}} and a newline.
  std::string body() const;

  int status;
  std::string param;
  std::string code;
};

// A request of /v1/completions or /v1/chat/completions.
struct Completion {
  bool is_chat = false;
  std::vector<std::vector<int32_t>> prompts;  // one for a chat
  std::vector<std::string> prompt_texts;      // for echo
  // The request of every choice, except row and prompt. For a T5 its prompt is the decoder's, and
  // `prompts` go to the encoder.
  Request base;
  int64_t n = 1;         // choices of a prompt that are drawn
  int64_t returned = 1;  // of these, those whose tokens have the highest mean log-probability
  std::vector<std::string> stop_strings;
  bool echo = false;
  bool logprobs = false;
  int64_t num_top = 0;
  bool stream = false;
  bool include_usage = false;
  // Chat with tools: the response may call the tools with these names.
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  std::vector<std::string> tools = {};
  bool has_parallel_calls = true;  // false: only the first call is returned

  bool continues_prompts() const { return base.prompt.empty(); }
};

// The completion of a request's body. Throws ApiError, which names the field.
Completion completion_of(ServedModel& model, const std::string& body, bool is_chat);

// The engine's requests for all choices: those of the first prompt, then those of the next one.
std::vector<Request> requests_of(const Completion& completion);

// A text of a request as the model reads it.
struct TextIds {
  std::vector<int32_t> ids;
  std::string text;
};
// The texts of a field: a string, token ids, or a list of either. Throws ApiError, which names the
// field, for more than `most` texts.
std::vector<TextIds> texts_of_field(const ServedModel& model, const nlohmann::json& request,
                                    const char* name, int64_t most);
// Throws ApiError if the request names another model.
void require_model(const ServedModel& model, const nlohmann::json& request);
// Throws ApiError for a text that is too long for the model.
void require_room(const ServedModel& model, const std::string& text);

// The JSON object of a body. Throws ApiError.
nlohmann::json object_of(const std::string& body);

}  // namespace megatron::serve
