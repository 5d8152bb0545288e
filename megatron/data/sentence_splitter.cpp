#include "megatron/data/sentence_splitter.h"

#include <algorithm>
#include <array>

#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

constexpr size_t kChunkCodePoints = 1'000'000;
constexpr std::string_view kNumber = "##number##";

// Sets of ASCII characters.
using Table = std::array<bool, 256>;
constexpr Table table_of(std::string_view characters) {
  Table table{};
  for (const char c : characters) table[static_cast<unsigned char>(c)] = true;
  return table;
}
constexpr Table kMarks = table_of(".?!");
constexpr Table kSpaces = table_of(" \t\n\v\f\r");
constexpr Table kPythonSpaces = table_of(" \t\n\v\f\r\x1C\x1D\x1E\x1F");  // like str.isspace()
constexpr Table kNeverInWord = table_of(")\";}]*:@'({[!?");
constexpr Table kNeverBeginsWord = table_of("(\"`{[:;&#*@)}]-,");
constexpr Table kClosers = table_of("\"')]}");

bool is_in(const Table& table, char c) { return table[static_cast<unsigned char>(c)]; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

CodePoint code_point_at(std::string_view text, size_t at) {
  return decode_utf8(text.data() + at, text.data() + text.size());
}

size_t character_length(std::string_view text, size_t at) {
  return is_ascii(text[at]) ? 1 : static_cast<size_t>(code_point_at(text, at).length);
}

// Bytes of the white space character at `at`; 0 if there is none.
size_t space_length(std::string_view text, size_t at) {
  if (at >= text.size()) return 0;
  if (is_ascii(text[at])) return is_in(kPythonSpaces, text[at]) ? 1 : 0;
  const CodePoint c = code_point_at(text, at);
  return is_white_space(c.value) ? static_cast<size_t>(c.length) : 0;
}

size_t skip_space(std::string_view text, size_t at) {
  while (const size_t length = space_length(text, at)) at += length;
  return at;
}

size_t skip_word(std::string_view text, size_t at) {
  while (at < text.size() && space_length(text, at) == 0) at += character_length(text, at);
  return at;
}

// The text without trailing white space.
std::string_view without_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t last = end - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (space_length(text, last) == 0) break;
    end = last;
  }
  return text.substr(0, end);
}

// Length of the dashes, the dots or the spaced dots at `at`; 0 for a single one.
size_t repeated_length(std::string_view text, size_t at) {
  const char c = text[at];
  if (c != '-' && c != '.') return 0;
  size_t end = at;
  while (end < text.size() && text[end] == c) ++end;
  if (end - at >= 2) return end - at;
  if (c == '-') return 0;
  int dots = 0;  // followed by white space
  size_t last = at;
  for (end = at; end < text.size() && text[end] == '.'; ++dots) {
    last = end;
    const size_t space = space_length(text, end + 1);
    if (space == 0) break;
    end += 1 + space;
  }
  // `last` is the last dot of the row; two dots with white space must precede it.
  const bool last_has_space = space_length(text, last + 1) > 0;
  return dots - (last_has_space ? 1 : 0) >= 2 ? last + 1 - at : 0;
}

// True if a word ends before `at`.
bool stops_word(std::string_view line, size_t at) {
  const auto stops = [&](size_t i) {
    return i >= line.size() || is_in(kNeverInWord, line[i]) || space_length(line, i) > 0 ||
           repeated_length(line, i) > 0;
  };
  return stops(at) || (line[at] == ',' && stops(at + 1));
}

// End of the token that begins at `at`.
size_t token_end(std::string_view line, size_t at) {
  if (const size_t length = repeated_length(line, at)) return at + length;
  size_t end = at + character_length(line, at);
  if (is_in(kNeverBeginsWord, line[at])) return end;
  while (!stops_word(line, end)) end += character_length(line, end);
  return end;
}

void lower_case(std::string_view text, std::string& lower) {
  lower.assign(text);
  for (char& c : lower) {
    if (!is_ascii(c)) {
      lower = to_utf8(lower_case_in_context(code_points(text)));
      return;
    }
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
}

// A sign, a point or comma, and at least one digit; then digits, commas, points, dashes.
bool is_number(std::string_view text) {
  size_t at = 0;
  const auto digit_length = [&]() -> size_t {
    if (at == text.size()) return 0;
    const CodePoint c = code_point_at(text, at);
    return is_decimal_digit(c.value) ? static_cast<size_t>(c.length) : 0;
  };
  if (text.starts_with('-')) ++at;
  if (at < text.size() && (text[at] == '.' || text[at] == ',')) ++at;
  if (digit_length() == 0) return false;
  while (at < text.size()) {
    const bool is_sign = text[at] == ',' || text[at] == '.' || text[at] == '-';
    const size_t length = is_sign ? 1 : digit_length();
    if (length == 0) return false;
    at += length;
  }
  return true;
}

// One letter and a full stop.
bool is_initial(std::string_view text) {
  if (text.size() < 2 || text.back() != '.') return false;
  const CodePoint c = code_point_at(text, 0);
  if (static_cast<size_t>(c.length) + 1 != text.size()) return false;
  return c.value == '_' || is_letter(c.value) ||
         (megatron::is_number(c.value) && !is_decimal_digit(c.value));
}

std::string_view without_stop(std::string_view type) {
  if (type.size() > 1 && type.back() == '.') type.remove_suffix(1);
  return type;
}

bool is_mark(std::string_view text) { return text.size() == 1 && is_in(kMarks, text[0]); }

// "u.s", "a.b.c": letters with full stops between them.
bool is_dotted_letters(std::string_view word) {
  if (word.size() < 3 || word.size() % 2 == 0) return false;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool is_right = i % 2 == 1 ? word[i] == '.' : word[i] >= 'a' && word[i] <= 'z';
    if (!is_right) return false;
  }
  return true;
}

// The closing quotes and brackets at the beginning of `text` that belong to the previous sentence.
struct Closers {
  size_t length = 0;
  size_t with_space = 0;
};
Closers closers_at(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && is_in(kClosers, text[end])) {
    ++end;
    const size_t space_end = skip_space(text, end);
    if (space_end > end || end == text.size() || text.substr(end).starts_with("--")) {
      return {end, space_end};
    }
  }
  return {};
}

size_t bytes_of_chunk(std::string_view text) {
  if (text.size() <= kChunkCodePoints) return text.size();
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins && ++count > kChunkCodePoints) return at;
  }
  return text.size();
}

}  // namespace

enum class SentenceSplitter::Answer { kYes, kNo, kUnknown };

// A possible end of a sentence and begin of the next one.
struct SentenceSplitter::Candidate {
  size_t begin = 0;        // of the candidate
  size_t end = 0;          // of the sentence
  size_t next = 0;         // begin of the next sentence
  size_t context_end = 0;  // of the deciding text
};

void SentenceSplitter::split(std::string_view text, std::vector<std::string_view>& sentences) {
  while (!text.empty()) {
    const size_t chunk = bytes_of_chunk(text);
    split_chunk(text.substr(0, chunk), sentences);
    text.remove_prefix(chunk);
  }
}

void SentenceSplitter::split_chunk(std::string_view text,
                                   std::vector<std::string_view>& sentences) {
  parts_.clear();
  size_t begin = 0;  // of the sentence
  Part word;         // before the candidate
  Candidate candidate;
  const auto decide = [&] {
    if (!has_break(text.substr(word.begin, candidate.context_end - word.begin))) return;
    parts_.push_back({begin, candidate.end});
    begin = candidate.next;
  };

  Candidate found;
  for (bool is_first = true; find_candidate(text, found.end, found); is_first = false) {
    size_t space = found.begin;
    while (space > word.end + 1 && !is_in(kSpaces, text[space - 1])) --space;
    const bool has_space = space > word.end + 1;
    const size_t word_begin = has_space ? space : word.begin;
    // Uses only the last of several candidates inside one word.
    if (!is_first && word.end <= word_begin) decide();
    word = {word_begin, found.begin};
    candidate = found;
  }
  if (candidate.end > 0) decide();
  parts_.push_back({begin, std::max(begin, without_end(text).size())});

  size_t moved = 0;  // bytes from the begin of a part to the previous sentence
  for (size_t i = 0; i < parts_.size(); ++i) {
    const size_t from = parts_[i].begin + moved;
    size_t to = std::max(from, parts_[i].end);
    moved = 0;
    if (i + 1 < parts_.size()) {
      const Part& next = parts_[i + 1];
      const Closers closers = closers_at(text.substr(next.begin, next.end - next.begin));
      moved = closers.with_space;
      if (closers.length > 0) to = next.begin + closers.length;
    }
    if (to > from) sentences.push_back(text.substr(from, to - from));
  }
}

bool SentenceSplitter::find_candidate(std::string_view text, size_t from, Candidate& found) const {
  if (options_.keep_newlines) return find_candidate_with_space(text, from, found);
  for (size_t mark = from; mark < text.size(); ++mark) {
    if (!is_in(kMarks, text[mark])) continue;
    const size_t end = mark + 1;
    if (end == text.size()) return false;
    if (is_in(kNeverInWord, text[end])) {
      found = {mark, end, end, end + 1};
      return true;
    }
    const size_t next = skip_space(text, end);
    if (next == end || next == text.size()) continue;
    found = {mark, end, next, skip_word(text, next)};
    return true;
  }
  return false;
}

// A candidate is the longest row of characters that ends in a mark, with the white space after it.
bool SentenceSplitter::find_candidate_with_space(std::string_view text, size_t from,
                                                 Candidate& found) const {
  for (size_t begin = skip_space(text, from); begin < text.size();) {
    const size_t row_end = skip_word(text, begin);
    const size_t next_row = skip_space(text, row_end);
    size_t end = row_end;                                                // after a mark
    if (next_row == text.size() && is_in(kMarks, text[end - 1])) --end;  // nothing follows it
    while (end > begin && !is_in(kMarks, text[end - 1])) --end;
    if (end == begin) {
      begin = next_row;
      continue;
    }
    const size_t next = end == row_end ? next_row : end;
    const bool is_cut = is_in(kNeverInWord, text[next]);
    found = {begin, next, next, is_cut ? next + 1 : skip_word(text, next)};
    return true;
  }
  return false;
}

// True if a token ends a sentence and another one follows.
bool SentenceSplitter::has_break(std::string_view context) {
  Token* token = nullptr;
  Token* next = &tokens_[0];
  for (size_t at = skip_space(context, 0); at < context.size(); at = skip_space(context, at)) {
    const std::string_view line =
        context.substr(0, std::min(context.find('\n', at), context.size()));
    const size_t end = token_end(line, at);
    *next = {context.substr(at, end - at), std::move(next->type), false, false, false};
    classify_alone(*next);
    if (token != nullptr) {
      classify_before(*token, *next);
      if (token->is_break) return true;
    }
    token = next;
    next = token == &tokens_[0] ? &tokens_[1] : &tokens_[0];
    at = end;
  }
  return false;
}

void SentenceSplitter::classify_alone(Token& token) const {
  const std::string_view text = token.text;
  lower_case(text, token.type);
  if (is_mark(text)) {
    token.is_break = true;
  } else if (text.size() >= 2 && text.find_first_not_of('.') == std::string_view::npos) {
    token.is_ellipsis = true;
  } else if (text.ends_with('.') && !text.ends_with("..")) {
    const std::string_view word = std::string_view(token.type).substr(0, token.type.size() - 1);
    const size_t dash = word.rfind('-');
    token.is_abbreviation = is_abbreviation(word) || (dash != std::string_view::npos &&
                                                      is_abbreviation(word.substr(dash + 1)));
    token.is_break = !token.is_abbreviation;
  }
  if (is_number(text)) token.type = kNumber;
}

// Applies the effect of the next token.
void SentenceSplitter::classify_before(Token& token, const Token& next) const {
  if (!token.text.ends_with('.')) return;
  const std::string_view word = without_stop(token.type);
  const std::string_view next_word = next.is_break ? without_stop(next.type) : next.type;
  if (rules_.pairs.contains({std::string(word), std::string(next_word)})) {
    token.is_break = false;
    return;
  }
  const bool has_initial = is_initial(token.text);
  if ((token.is_abbreviation || token.is_ellipsis) && !has_initial) {
    const bool is_upper = is_upper_case(code_point_at(next.text, 0).value);
    if (begins_sentence(next) == Answer::kYes ||
        (is_upper && rules_.starters.contains(next_word))) {
      token.is_break = true;
      return;
    }
  }
  if (!has_initial && word != kNumber) return;
  const Answer answer = begins_sentence(next);
  const bool is_name = answer == Answer::kUnknown && has_initial &&
                       is_upper_case(code_point_at(next.text, 0).value) &&
                       (seen(next_word) & SentenceRules::kAnyLower) == 0;
  if (answer == Answer::kNo || is_name) token.is_break = false;
}

// Decides by the case of the first letter.
SentenceSplitter::Answer SentenceSplitter::begins_sentence(const Token& token) const {
  constexpr std::string_view kPunctuation = ";:,.!?";
  if (token.text.size() == 1 && kPunctuation.find(token.text[0]) != std::string_view::npos) {
    return Answer::kNo;
  }
  const int seen_as = seen(token.is_break ? without_stop(token.type) : token.type);
  const char32_t first = code_point_at(token.text, 0).value;
  const bool was_lower = (seen_as & SentenceRules::kAnyLower) != 0;
  const bool was_name = (seen_as & SentenceRules::kMiddleUpper) != 0;
  if (is_upper_case(first) && was_lower && !was_name) return Answer::kYes;
  const bool was_upper = (seen_as & SentenceRules::kAnyUpper) != 0;
  const bool began_lower = (seen_as & SentenceRules::kBeginLower) != 0;
  if (is_lower_case(first) && (was_upper || !began_lower)) return Answer::kNo;
  return Answer::kUnknown;
}

bool SentenceSplitter::is_abbreviation(std::string_view word) const {
  return rules_.abbreviations.contains(word) ||
         (rules_.letters_abbreviate && is_dotted_letters(word));
}

int SentenceSplitter::seen(std::string_view word) const {
  const auto entry = rules_.seen.find(word);
  return entry == rules_.seen.end() ? 0 : entry->second;
}

}  // namespace megatron
