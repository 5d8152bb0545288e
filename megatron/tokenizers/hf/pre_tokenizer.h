#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "megatron/tokenizers/hf/pieces.h"
#include "megatron/tokenizers/hf/word_split.h"

namespace megatron::hf {

// One step that cuts or changes pieces. Thread safe.
using PreTokenizerStep = std::function<void(Pieces&)>;

struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;
  WordSplit words;  // of the pieces behind the last step
  // The model gets the bytes of words as printable characters (byte_map.h).
  bool maps_bytes = false;
};

// The "pre_tokenizer" of a tokenizer.json; without steps for null. Throws FormatError on a type
// that is not known.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

}  // namespace megatron::hf
