#include "megatron/tokenizers/hf/added_tokens.h"

#include <algorithm>

#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::hf {
namespace {

// REQUIRES: end > 0.
CodePoint last_before(std::string_view text, size_t end) {
  return last_code_point(text.data(), text.data() + end);
}

CodePoint first_at(std::string_view text, size_t begin) {
  return decode_utf8(text.data() + begin, text.data() + text.size());
}

}  // namespace

void TokenFinder::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  trie_.insert(content, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
  is_first_[static_cast<uint8_t>(content[0])] = true;
}

bool TokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const bool joins_left = begin > 0 && is_word_character(last_before(text, begin).value);
  const bool joins_right = end < text.size() && is_word_character(first_at(text, end).value);
  return !joins_left && !joins_right;
}

void TokenFinder::split(std::string_view text, std::vector<Segment>& segments) const {
  segments.clear();
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    if (end > done) segments.push_back({text.substr(done, end - done)});
  };
  for (size_t at = 0; at < text.size();) {
    ByteTrie::Match match;
    if (is_first_[static_cast<uint8_t>(text[at])]) match = trie_.longest_prefix(text.substr(at));
    if (match.number < 0) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at += match.length;
    const AddedToken& token = tokens_[static_cast<size_t>(match.number)];
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    while (token.lstrip && begin > done && is_white_space(last_before(text, begin).value)) {
      begin -= static_cast<size_t>(last_before(text, begin).length);
    }
    while (token.rstrip && end < text.size() && is_white_space(first_at(text, end).value)) {
      end += static_cast<size_t>(first_at(text, end).length);
    }
    add_text(begin);
    segments.push_back({text.substr(begin, end - begin), token.id});
    done = std::max(done, end);
  }
  add_text(text.size());
}

}  // namespace megatron::hf
