#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace megatron::hf {

// Transforms the pieces of a text for decoding, which finally joins them. Thread safe.
using Decoder = std::function<void(std::vector<std::string>&)>;

enum class BrokenText {
  kReplaced,  // by U+FFFD
  kKept,      // keeps bytes that are not UTF-8
};

// The "decoder" of a tokenizer.json; for null, one that puts blanks between the pieces. Throws
// FormatError for an unknown type.
Decoder make_decoder(const nlohmann::json& json, BrokenText broken = BrokenText::kReplaced);

}  // namespace megatron::hf
