#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace megatron::hf {

// Changes the pieces of a text on their way back; what is left in the end is joined. Thread safe.
using Decoder = std::function<void(std::vector<std::string>&)>;

enum class BrokenText {
  kReplaced,  // by U+FFFD
  kKept,      // bytes that are no UTF-8 stay what they are
};

// The "decoder" of a tokenizer.json; for null, one that puts blanks between the pieces. Throws
// FormatError on a type that is not known.
Decoder make_decoder(const nlohmann::json& json, BrokenText broken = BrokenText::kReplaced);

}  // namespace megatron::hf
