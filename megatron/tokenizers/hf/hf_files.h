#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megatron/tokenizers/hf/added_tokens.h"
#include "megatron/tokenizers/hf/model_file.h"

namespace megatron::hf {

// The contents of a Hugging Face tokenizer's files: tokenizer.json, and, if they exist,
// tokenizer_config.json, special_tokens_map.json and added_tokens.json.
struct HfFiles {
  std::string source;                               // the folder or file as given by the user
  TokenizerJson tokenizer;                          // tokenizer.json
  std::map<std::string, std::string> named_tokens;  // "eos_token" -> "</s>"
  std::vector<std::string> additional_special_tokens;
  std::vector<AddedToken> more_tokens;  // of the files beside tokenizer.json; no ids
  bool removes_extra_blanks = false;    // clean_up_tokenization_spaces
};

// Reads a folder, or a tokenizer.json with the files beside it. A missing tokenizer.json is built
// from vocab.json and merges.txt, or from vocab.txt. Throws IoError, FormatError, and ConfigError
// if all of them are missing.
HfFiles read_hf_files(const std::string& path);

}  // namespace megatron::hf
