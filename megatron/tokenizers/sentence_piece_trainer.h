#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Learns a SentencePiece model from text with the SentencePiece library.
class SentencePieceModelTrainer {
 public:
  struct Options {
    bool unigram = false;  // else BPE
    int64_t vocab_size = 0;
    double character_coverage = 0.9995;  // fraction of characters covered by pieces
    bool byte_fallback = true;  // rarer ones become bytes, for which 256 pieces are reserved
  };

  // Each line is one sentence.
  void add_text(std::string_view text);

  // The content of a tokenizer.model with <unk> 0, <s> 1, </s> 2. Throws ConfigError without text,
  // or if vocab_size is too large or too small for it.
  std::string train(const Options& options) const;

 private:
  std::vector<std::string> sentences_;
};

}  // namespace megatron
