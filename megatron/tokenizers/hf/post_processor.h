#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace megatron::hf {

// The special tokens that surround a text.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// The tokens that the "post_processor" of a tokenizer.json adds to a single text; none for null.
// Throws FormatError for an unknown type.
PostProcessor make_post_processor(const nlohmann::json& json);

}  // namespace megatron::hf
