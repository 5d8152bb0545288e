#include "megatron/tokenizers/hf/added_tokens.h"

#include <algorithm>
#include <bit>

#include "megatron/tokenizers/ascii_block.h"
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
  if (std::find(first_bytes_.begin(), first_bytes_.end(), content[0]) == first_bytes_.end()) {
    first_bytes_.push_back(content[0]);
  }
  begins_.resize(256 * 256);
  for (size_t second = 0; second < 256; ++second) {
    if (content.size() > 1 && static_cast<uint8_t>(content[1]) != second) continue;
    begins_[static_cast<uint8_t>(content[0]) * size_t{256} + second] = true;
  }
}

bool TokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const bool joins_left = begin > 0 && is_word_character(last_before(text, begin).value);
  const bool joins_right = end < text.size() && is_word_character(first_at(text, end).value);
  return !joins_left && !joins_right;
}

bool TokenFinder::may_begin(std::string_view text, size_t at) const {
  if (at + 1 == text.size()) return true;
  return begins_[static_cast<uint8_t>(text[at]) * size_t{256} + static_cast<uint8_t>(text[at + 1])];
}

size_t TokenFinder::next_candidate(std::string_view text, size_t at) const {
  constexpr size_t kBytes = AsciiBlock::kBytes;
  for (; at + kBytes <= text.size(); at += kBytes) {
    const AsciiBlock block(text.data() + at);
    uint64_t places = 0;
    for (const char first : first_bytes_) places |= block.equal(first);
    for (; places != 0; places &= places - 1) {
      const size_t place = at + static_cast<size_t>(std::countr_zero(places));
      if (may_begin(text, place)) return place;
    }
  }
  const auto is_candidate = [&](size_t place) {
    return std::find(first_bytes_.begin(), first_bytes_.end(), text[place]) != first_bytes_.end() &&
           may_begin(text, place);
  };
  while (at < text.size() && !is_candidate(at)) ++at;
  return at;
}

void TokenFinder::split(std::string_view text, std::vector<Segment>& segments) const {
  segments.clear();
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    if (end > done) segments.push_back({text.substr(done, end - done)});
  };
  if (tokens_.empty()) return add_text(text.size());
  for (size_t at = 0; (at = next_candidate(text, at)) < text.size();) {
    const ByteTrie::Match match = trie_.longest_prefix(text.substr(at));
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
