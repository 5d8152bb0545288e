#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/serve/served_model.h"

namespace megatron::serve {

// A refusal as OpenAI's clients read it.
class ApiError : public std::runtime_error {
 public:
  ApiError(int the_status, const std::string& message, std::string the_param = {},
           std::string the_code = {});
  // {"error": {"message", "type", "param", "code"}} and a new line.
  std::string body() const;

  int status;
  std::string param;
  std::string code;
};

// A request of /v1/completions or /v1/chat/completions.
struct Completion {
  bool is_chat = false;
  std::vector<std::vector<int32_t>> prompts;  // of a chat one
  std::vector<std::string> prompt_texts;      // for echo
  // Of each choice but its row and its prompt. For a T5 it has the decoder's prompt, and the
  // encoder reads those of the completion.
  Request base;
  int64_t n = 1;  // choices of a prompt
  std::vector<std::string> stop_strings;
  bool echo = false;
  bool logprobs = false;
  int64_t num_top = 0;
  bool stream = false;
  bool include_usage = false;

  bool continues_prompts() const { return base.prompt.empty(); }
};

// Throws ApiError naming the field.
Completion completion_of(ServedModel& model, const nlohmann::json& request, bool is_chat);

// The choices as the engine takes them: those of the first prompt, then those of the next one.
std::vector<Request> requests_of(const Completion& completion);

// The JSON object of a body. Throws ApiError.
nlohmann::json object_of(const std::string& body);

}  // namespace megatron::serve
