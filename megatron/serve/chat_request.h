#pragma once

#include <string>

#include "megatron/serve/chat_template.h"

namespace megatron::serve {

// The prompt of a request of /v1/chat/completions: its messages, tools, documents and other
// variables, written by the template. `body` is the JSON of the request; templates see its keys in
// their order. Contents are texts, or lists of parts of type text, which are joined; arguments of
// tool calls that are a JSON text become its value; null fields are left out. Throws ApiError.
std::string chat_prompt(const ChatTemplate& chat_template, const std::string& body);

}  // namespace megatron::serve
