#include "megatron/tasks/text_rows.h"

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/tasks/detokenize.h"

namespace megatron {
namespace {

// The last word of a stripped text.
std::string_view last_word(std::string_view text) {
  for (size_t begin = text.size(); begin > 0; --begin) {
    const bool is_inside = (static_cast<unsigned char>(text[begin - 1]) & 0xc0) == 0x80;
    if (is_inside) continue;
    const std::string_view word = text.substr(begin - 1);
    if (const std::string_view rest = stripped(word); rest.size() < word.size()) return rest;
  }
  return text;
}

}  // namespace

std::vector<TextRow> sliding_windows(std::span<const int32_t> tokens, int64_t length,
                                     int64_t stride) {
  invariant(length > 0 && stride > 0, "windows have a length and a stride");
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t step = std::min(stride, length);
  std::vector<TextRow> rows;
  for (int64_t begin = 0; begin + 1 < count; begin += step) {
    const auto ids = tokens.subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>(std::min(length + 1, count - begin)));
    TextRow row = {{ids.begin(), ids.end()}, begin == 0 ? 1 : length - step + 1};
    if (row.num_labels() <= 0) break;
    rows.push_back(std::move(row));
  }
  return rows;
}

TextRow cloze_row(std::string_view text, const Tokenizer& tokenizer, int64_t length,
                  bool whole_word) {
  TextRow row;
  if (whole_word) {
    const std::string_view word = last_word(stripped(text));
    if (word.empty()) throw ConfigError("the text has no word; give it some");
    row.ids = tokenizer.encode(stripped(text.substr(0, text.rfind(word))));
    row.first_label = static_cast<int64_t>(row.ids.size());
    const std::vector<int32_t> labels = tokenizer.encode(" " + std::string(word));
    row.ids.insert(row.ids.end(), labels.begin(), labels.end());
  } else {
    row.ids = tokenizer.encode(text);
    row.first_label = static_cast<int64_t>(row.ids.size()) - 1;
  }
  const int64_t surplus = static_cast<int64_t>(row.ids.size()) - (length + 1);
  if (surplus > 0) {
    row.ids.erase(row.ids.begin(), row.ids.begin() + surplus);
    row.first_label -= surplus;
  }
  if (row.first_label < 1 || row.num_labels() < 1) {
    throw ConfigError("no token is left to predict the last word from; give a longer text");
  }
  return row;
}

}  // namespace megatron
