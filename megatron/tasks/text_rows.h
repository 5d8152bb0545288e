#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

// The rows of tokens that a GPT is asked about without having been trained for the question.
namespace megatron {

// The model reads all ids but the last, and its predictions of ids[first_label] and of all after it
// count.
struct TextRow {
  std::vector<int32_t> ids;
  int64_t first_label = 1;

  int64_t num_labels() const { return static_cast<int64_t>(ids.size()) - first_label; }
  bool operator==(const TextRow&) const = default;
};

// Windows of `length` inputs over one long text. Each begins `stride` tokens after the one before
// and is asked for its last `stride` tokens, the first window for all, so every token but the first
// counts once. With a stride of `length` or more they are `length` apart and do not overlap.
//
// Compat: as Megatron-LM's WIKITEXT103, without the windows at its end that ask for nothing.
std::vector<TextRow> sliding_windows(std::span<const int32_t> tokens, int64_t length,
                                     int64_t stride);

// Asks for the last token of a text, or with `whole_word` for all tokens of its last word, which
// the tokenizer then gets by itself, with a blank before it. Keeps the last `length` + 1 ids.
// Throws ConfigError if nothing is left to predict from.
//
// Compat: as Megatron-LM's LAMBADA, without and with --strict-lambada.
TextRow cloze_row(std::string_view text, const Tokenizer& tokenizer, int64_t length,
                  bool whole_word);

}  // namespace megatron
