#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

// Rows of tokens for zero-shot evaluation of a GPT.
namespace megatron {

// The inputs are all ids but the last; the predictions of ids[first_label] and of all later ids are
// scored.
struct TextRow {
  std::vector<int32_t> ids;
  int64_t first_label = 1;

  int64_t num_labels() const { return static_cast<int64_t>(ids.size()) - first_label; }
  bool operator==(const TextRow&) const = default;
};

// Sliding windows of `length` inputs over one long text. Each begins `stride` tokens after the
// previous one, and its last `stride` tokens are scored, of the first window all, so every token
// but the first is scored once. With a stride of `length` or more they are `length` apart and do
// not overlap.
//
// Compat: as Megatron-LM's WIKITEXT103, without its last windows, which score nothing.
std::vector<TextRow> sliding_windows(std::span<const int32_t> tokens, int64_t length,
                                     int64_t stride);

// Scores the last token of a text, or with `whole_word` all tokens of its last word, which is then
// tokenized separately, with a blank before it. Keeps the last `length` + 1 ids. Throws ConfigError
// if no context is left.
//
// Compat: as Megatron-LM's LAMBADA, without and with --strict-lambada.
TextRow cloze_row(std::string_view text, const Tokenizer& tokenizer, int64_t length,
                  bool whole_word);

}  // namespace megatron
