#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace megatron::serve {

// A field of a request of PUT /api is invalid.
class Refusal : public std::runtime_error {
 public:
  // `is_late`: a check after those of `prompts`; only those of `prompts` have status 400.
  explicit Refusal(const std::string& text, bool late = true)
      : std::runtime_error(text), is_late(late) {}
  bool is_late;
};

// The fields of a request of PUT /api.
struct Fields {
  std::vector<std::string> prompts = {};
  int64_t tokens_to_generate = 64;
  bool logprobs = false;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 0.0;
  double top_p_decay = 0.0;
  double top_p_bound = 0.0;
  bool add_bos = false;
  bool stop_on_double_eol = false;
  bool stop_on_eol = false;
  bool prevent_newline_after_colon = false;
  std::optional<int64_t> random_seed = {};
  bool no_log = false;
  std::optional<int64_t> beam_width = {};
  std::optional<int32_t> stop_token = {};
  double length_penalty = 1.0;
};

// Compat: Megatron-LM core_r0.5.0, megatron/text_generation_server.py: the checks, their order and
// their messages. Ignores unknown fields. Throws Refusal.
Fields checked_fields(const nlohmann::json& request);

}  // namespace megatron::serve
