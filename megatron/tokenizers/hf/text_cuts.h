#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/ascii_block.h"
#include "megatron/tokenizers/blank_words.h"
#include "megatron/tokenizers/hf/added_tokens.h"
#include "megatron/tokenizers/hf/model.h"

namespace megatron::hf {

// Where a text may be cut before it is normalised: the ids of the parts, each encoded alone, are
// those of the text. A part is hardly more than a word, so that its ids can be remembered and most
// text needs no normalising. Immutable, so thread safe.
class TextCuts {
 public:
  // No cuts.
  TextCuts() = default;
  // By the parts of a tokenizer.json. `added` are the tokens that are looked for in normalised
  // text, with that text as content.
  TextCuts(const nlohmann::json& normalizer, const nlohmann::json& pre_tokenizer,
           const Model& model, const std::vector<AddedToken>& added);

  bool may_cut(std::string_view text) const;
  // Calls emit(part) for the parts, in order, without blanks that have no ids.
  // REQUIRES: may_cut(text).
  template <class Emit>
  void cut(std::string_view text, const Emit& emit) const {
    if (places_ == Places::kBlankMarks) return cut_blank_words(text, false, emit);
    const bool is_bert = places_ == Places::kBertWords;
    const char* begin = text.data();
    const auto emit_until = [&](const char* end) {
      if (end > begin) emit(std::string_view(begin, static_cast<size_t>(end - begin)));
      begin = end;
    };
    for_each_byte(
        text,
        [&](const AsciiBlock& block) {
          return is_bert ? bert_blanks(block) | punctuation(block) : blanks(block);
        },
        [&](const char* p) {
          if (!is_bert && !is_free(text, p)) return;
          emit_until(p);
          if (*p > ' ') {
            emit_until(p + 1);
          } else {
            ++begin;
          }
        });
    emit_until(text.data() + text.size());
  }

 private:
  enum class Places {
    kNowhere,
    kBlankMarks,  // before runs of blanks, which become marks that keep to words
    kBlanks,      // at blanks that belong to no character beside them
    kBertWords,   // at blanks and around punctuation
  };

  static uint64_t blanks(const AsciiBlock& block) { return block.equal(' ') | block.equal('\n'); }
  static uint64_t bert_blanks(const AsciiBlock& block) {
    return block.equal(' ') | block.range('\t', 2) | block.equal('\r');
  }
  static uint64_t punctuation(const AsciiBlock& block) {
    return block.range('!', 15) | block.range(':', 7) | block.range('[', 6) | block.range('{', 4);
  }
  // Whether the blank at `p` is a grapheme cluster of its own.
  static bool is_free(std::string_view text, const char* p) {
    const auto is_plain = [](char c) { return static_cast<signed char>(c) >= 0 && c != '\r'; };
    const bool begins = p == text.data();
    const bool ends = p + 1 == text.data() + text.size();
    if ((begins || is_plain(p[-1])) && (ends || is_plain(p[1]))) return true;
    return is_cluster(text, p);
  }
  static bool is_cluster(std::string_view text, const char* p);

  Places places_ = Places::kNowhere;
};

}  // namespace megatron::hf
