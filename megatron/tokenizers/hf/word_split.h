#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "megatron/tokenizers/gpt2_split.h"
#include "megatron/tokenizers/gpt4o_split.h"
#include "megatron/tokenizers/hf/pieces.h"
#include "megatron/tokenizers/llama3_split.h"

namespace megatron::hf {

// Splits a text with the scanner of a well-known pattern, or not at all. Immutable, so thread safe.
class WordSplit {
 public:
  // The text is one word.
  WordSplit() = default;
  static WordSplit gpt2();
  // The scanner of a pattern; nothing if it has none.
  static std::optional<WordSplit> of(std::string_view regex);

  // Calls emit(std::string_view word) for the words of a text, in order.
  template <class Emit>
  void cut(std::string_view text, const Emit& emit) const {
    if (cased_classes_ != nullptr) {
      gpt4o_split(text, rules_, *cased_classes_, emit);
    } else if (classes_ == nullptr) {
      emit(text);
    } else if (is_gpt2_) {
      gpt2_split(text, *classes_, emit);
    } else {
      llama3_split(text, rules_, *classes_, emit);
    }
  }
  // As a step of a pre-tokenizer.
  void operator()(Pieces& pieces) const {
    pieces.split_each([&](const Piece& piece, const auto& add) {
      cut(piece.text, [&](std::string_view word) {
        add({word, piece.is_first && word.data() == piece.text.data()});
      });
    });
  }

 private:
  std::shared_ptr<const CharClasses> classes_;
  std::shared_ptr<const CasedClasses> cased_classes_;
  bool is_gpt2_ = false;
  WordRules rules_;
};

}  // namespace megatron::hf
