#include "megatron/serve/request_body.h"

#include <nlohmann/json.hpp>

namespace megatron::serve {

nlohmann::json parse_body(const std::string& body) {
  return parse_json(body, kRequestLimits, "the body");
}

}  // namespace megatron::serve
