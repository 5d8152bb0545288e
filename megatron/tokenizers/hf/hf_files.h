#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megatron/tokenizers/hf/added_tokens.h"
#include "megatron/tokenizers/hf/model_file.h"

namespace megatron::hf {

// What the files of a Hugging Face tokenizer say: tokenizer.json, and beside it
// tokenizer_config.json, special_tokens_map.json and added_tokens.json, each if it is there.
struct HfFiles {
  std::string source;                               // the folder or file as it was given
  TokenizerJson tokenizer;                          // tokenizer.json
  std::map<std::string, std::string> named_tokens;  // "eos_token" -> "</s>"
  std::vector<std::string> additional_special_tokens;
  std::vector<AddedToken> more_tokens;  // of the files beside tokenizer.json; no ids
  bool removes_extra_blanks = false;    // clean_up_tokenization_spaces
};

// Reads a folder, or a tokenizer.json with the files beside it. Where there is no tokenizer.json it
// is made of vocab.json and merges.txt, or of vocab.txt. Throws IoError, FormatError, and
// ConfigError if nothing of that is there.
HfFiles read_hf_files(const std::string& path);

}  // namespace megatron::hf
