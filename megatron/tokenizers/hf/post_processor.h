#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace megatron::hf {

// The special tokens that surround a text.
struct Surroundings {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// What the "post_processor" of a tokenizer.json adds to a single text; nothing for null. Throws
// FormatError on a type that is not known.
Surroundings make_surroundings(const nlohmann::json& json);

}  // namespace megatron::hf
