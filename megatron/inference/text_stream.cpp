#include "megatron/inference/text_stream.h"

#include <algorithm>
#include <utility>

#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

// Number of earlier tokens that influence how new ones are decoded.
constexpr size_t kContext = 6;
// A character has at most 4 bytes: more tokens without a complete one are invalid.
constexpr size_t kMaxTokensOfCharacter = 4;

bool ends_inside_character(const std::string& text) { return text.ends_with("\xEF\xBF\xBD"); }

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {
  std::erase(stop_strings_, std::string());
  const auto context = before.last(std::min(before.size(), kContext));
  tokens_.assign(context.begin(), context.end());
  given_ = tokens_.size();
}

std::string TextStream::push(int32_t token) {
  last_bytes_ = tokenizer_.token_bytes(token);
  last_begin_ = num_certain_ + begin_of(last_bytes_);
  const bool is_first = pending_.empty();
  pending_ += last_bytes_;
  tokens_.push_back(token);
  const std::string fresh = new_text(false);
  // Tokens may be decoded differently at the beginning of a text or after other neighbours.
  if (is_first && pending_.empty() && is_valid_utf8(last_bytes_)) last_bytes_ = fresh;
  return released(fresh, false);
}

std::string TextStream::finish() { return released(new_text(true), true); }

// Characters of the pending bytes before the next token's; -1: the token continues the last,
// incomplete character of the text.
int64_t TextStream::begin_of(std::string_view token_bytes) const {
  const auto count = [](std::string_view bytes) { return num_characters(with_valid_utf8(bytes)); };
  const std::string before = before_pending_ + pending_;
  const int64_t begin = count(before) - count(before_pending_);
  const bool goes_on =
      count(before + std::string(token_bytes)) < count(before) + count(token_bytes);
  return goes_on ? begin - 1 : begin;
}

// The text of the tokens not returned yet; empty while it may still change.
std::string TextStream::new_text(bool is_last) {
  const std::span<const int32_t> all(tokens_);
  const std::string before = tokenizer_.decode(all.subspan(first_, given_ - first_));
  const std::string text = tokenizer_.decode(all.subspan(first_));
  const bool is_whole =
      !ends_inside_character(text) || is_last || tokens_.size() - given_ >= kMaxTokensOfCharacter;
  if (!is_whole) return "";
  const auto differs = std::mismatch(before.begin(), before.end(), text.begin(), text.end());
  std::string fresh(differs.second, text.end());
  first_ = given_;
  given_ = tokens_.size();
  before_pending_ = std::exchange(pending_, {});
  num_certain_ += num_characters(fresh);
  return fresh;
}

std::string TextStream::released(const std::string& text, bool is_last) {
  if (is_stopped_) return "";
  held_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stop_strings_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    is_stopped_ = true;
    held_.resize(end);
    num_given_ += num_characters(held_);
    return std::exchange(held_, {});
  }
  size_t kept = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stop_strings_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) kept = length;
    }
  }
  if (is_last) kept = 0;
  std::string given = held_.substr(0, held_.size() - kept);
  held_.erase(0, given.size());
  num_given_ += num_characters(given);
  return given;
}

}  // namespace megatron
