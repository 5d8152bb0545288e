#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Tokens are the codes of ASCII letters; 0 ends a document. Each letter but a blank is a token, or
// each letter.
class LetterTokenizer final : public Tokenizer {
 public:
  explicit LetterTokenizer(bool keeps_blanks = false) : keeps_blanks_(keeps_blanks) {}

  std::unique_ptr<Encoder> make_encoder() const override {
    struct LetterEncoder final : Encoder {
      explicit LetterEncoder(bool keeps) : keeps_blanks(keeps) {}
      void append(std::string_view text, std::vector<int32_t>& ids) override {
        for (const char letter : text) {
          if (letter != ' ' || keeps_blanks) ids.push_back(letter);
        }
      }
      bool keeps_blanks;
    };
    return std::make_unique<LetterEncoder>(keeps_blanks_);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += piece(id);
    return text;
  }
  std::string piece(int32_t id) const override {
    if (id < 0 || id > 127) throw FormatError("LetterTokenizer: unknown id");
    return id == 0 ? "<|endoftext|>" : std::string(1, static_cast<char>(id));
  }
  std::optional<int32_t> id_of(std::string_view piece) const override {
    return piece.size() == 1 ? std::optional<int32_t>(piece[0]) : std::nullopt;
  }
  int64_t vocab_size() const override { return 128; }
  std::optional<int32_t> special_id(SpecialToken token) const override {
    switch (token) {
      case SpecialToken::kEod:
        return 0;
      case SpecialToken::kPad:
        return 1;
      case SpecialToken::kCls:
        return 2;
      case SpecialToken::kSep:
        return 3;
      default:
        return std::nullopt;
    }
  }
  std::string_view type() const override { return "LetterTokenizer"; }
  std::string source() const override { return ""; }
  TokenizerDescription description() const override { return {"LetterTokenizer", {}, {}}; }

 private:
  bool keeps_blanks_;
};

}  // namespace megatron
