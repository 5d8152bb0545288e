#pragma once

#include <string>

#include "megatron/serve/served_model.h"

namespace megatron::serve {

struct Answer {
  int status = 200;
  std::string body;
};

// PUT /api: the interface of Megatron-LM's text generation server.
//
// Compat: Megatron-LM core_r0.5.0. Checks have its order and messages; those of fields checked
// after `prompts` have status 200 and a JSON string as body, or 400 with strict_http_status.
// Numbers are those of fp32. For differences see docs/serving.md.
//
// `content_type` is that of the request.
Answer megatron_api(ServedModel& model, const std::string& body, const std::string& content_type);

}  // namespace megatron::serve
