#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Learns a SentencePiece model from text, by the library.
class SentencePieceModelTrainer {
 public:
  struct Options {
    bool unigram = false;  // else BPE
    int64_t vocab_size = 0;
    double character_coverage = 0.9995;  // part of all characters that get a piece
    bool byte_fallback = true;           // rarer ones become bytes, which take 256 pieces
  };

  // Each line is one sentence.
  void add_text(std::string_view text);

  // The content of a tokenizer.model with <unk> 0, <s> 1, </s> 2. Throws ConfigError if there is no
  // text, or if it is too little or too much for vocab_size.
  std::string train(const Options& options) const;

 private:
  std::vector<std::string> sentences_;
};

}  // namespace megatron
