#include "megatron/serve/request_body.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/serve/http_server.h"
#include "megatron/serve/service.h"

namespace megatron::serve {
namespace {

// Of a small value, with its key and its place in a list or object.
constexpr int64_t kMemoryOfValue = 64;
// So many do not count, as the beginning of a body does not.
constexpr int64_t kFreeValues = 1024;

}  // namespace

nlohmann::json parse_body(const std::string& body) {
  // Each value but the first has one of these before it; texts have some more.
  const int64_t most =
      std::ranges::count_if(body, [](char c) { return c == ',' || c == '[' || c == '{'; });
  const int64_t counted = std::min(most, kRequestLimits.max_values) - kFreeValues;
  if (counted > 0 && !HttpServer::take_memory(counted * kMemoryOfValue)) {
    throw Overloaded(kNoMemory);
  }
  return parse_json(body, kRequestLimits, "the body");
}

}  // namespace megatron::serve
