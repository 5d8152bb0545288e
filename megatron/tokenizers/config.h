#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

// Which tokenizer, from which files. Names are Megatron's flag names.
struct TokenizerConfig {
  std::string tokenizer_type;                  // required, unless the program has a default
  std::string vocab_file;                      // GPT2BPE (vocab.json), BertWordPiece (vocab.txt)
  std::string merge_file;                      // GPT2BPE (merges.txt)
  std::string tokenizer_model;                 // SentencePiece and Llama2 model, tokenizer.json
  std::string tokenizer_name_or_path;          // PretrainedFromHF: a directory with tokenizer.json
  int64_t vocab_size = 0;                      // NullTokenizer
  int64_t vocab_extra_ids = 0;                 // sentinel tokens; T5 uses 100
  int64_t make_vocab_size_divisible_by = 128;  // times tp: the unit of padding
  int64_t pad_vocab_size_to = 0;               // padded size; 0: next multiple of the unit
};

// Everything wrong with a config, one sentence each; empty when it is valid.
std::vector<std::string> problems(const TokenizerConfig& config);

}  // namespace megatron
