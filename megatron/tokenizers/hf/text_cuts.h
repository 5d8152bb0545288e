#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/ascii_block.h"
#include "megatron/tokenizers/blank_words.h"
#include "megatron/tokenizers/hf/added_tokens.h"
#include "megatron/tokenizers/hf/model.h"

namespace megatron::hf {

// Positions where a text may be split before normalisation: the parts, each encoded separately,
// have the ids of the text. Parts are about one word long, so their ids can be cached and most text
// need not be normalised. Immutable, so thread safe.
class TextCuts {
 public:
  // No cuts.
  TextCuts() = default;
  // For the components of a tokenizer.json. `added` are the tokens matched in normalised text, with
  // their normalised content.
  TextCuts(const nlohmann::json& normalizer, const nlohmann::json& pre_tokenizer,
           const Model& model, const std::vector<AddedToken>& added);

  bool may_cut(std::string_view text) const;
  // Calls emit(part) for the parts, in order, without blanks that produce no ids. REQUIRES:
  // may_cut(text).
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
    kBlankMarks,  // before runs of blanks, which become U+2581 and never span words
    kBlanks,      // at blanks that are grapheme clusters of their own
    kBertWords,   // at blanks and around punctuation
  };

  static uint64_t blanks(const AsciiBlock& block) { return block.equal(' ') | block.equal('\n'); }
  static uint64_t bert_blanks(const AsciiBlock& block) {
    return block.equal(' ') | block.range('\t', 2) | block.equal('\r');
  }
  static uint64_t punctuation(const AsciiBlock& block) {
    return block.range('!', 15) | block.range(':', 7) | block.range('[', 6) | block.range('{', 4);
  }
  // True if the blank at `p` is a grapheme cluster of its own.
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
