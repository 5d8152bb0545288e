#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "megatron/tokenizers/hf/pieces.h"
#include "megatron/tokenizers/hf/word_split.h"

namespace megatron::hf {

// A step that splits or modifies pieces. Thread safe.
using PreTokenizerStep = std::function<void(Pieces&)>;

struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;
  WordSplit words;  // splits the pieces after the last step
  // True if the model gets bytes as printable characters (byte_map.h).
  bool maps_bytes = false;
};

// The "pre_tokenizer" of a tokenizer.json; without steps for null. Throws FormatError for an
// unknown type.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

}  // namespace megatron::hf
