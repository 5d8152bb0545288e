#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "megatron/formats/name_rule.h"
#include "megatron/interchange/hf/binding.h"
#include "megatron/transformer/config.h"

namespace megatron {

// A model family of Hugging Face transformers. Each is a file of families/ and a row of
// hf_families().
struct HfFamily {
  std::string_view model_type;    // "llama"
  std::string_view architecture;  // transformers' class: "LlamaForCausalLM"
  ModelKind kind = ModelKind::kGpt;
  std::string_view tokenizer_type = "HuggingFaceTokenizer";  // the usual --tokenizer-type
  // Binds the fields of config.json to all settings that the family's models have beyond those of
  // every model (vocabulary, special tokens, dtype). Settings to which nothing is bound must be the
  // defaults of TransformerConfig.
  void (*bind)(HfBinding& fields, TransformerConfig& config) = nullptr;
  // The names and layouts of the tensors. The rules of parameters that the configuration does not
  // have are unused.
  NameTable (*names)(const TransformerConfig& config) = nullptr;
};

// Every family; a configuration that several can express is written as the first of them.
std::span<const HfFamily* const> hf_families();

// The family of a model_type; nullptr if there is none.
const HfFamily* find_hf_family(std::string_view model_type);

}  // namespace megatron
