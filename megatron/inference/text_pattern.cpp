#include "megatron/inference/text_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/printable.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {
namespace {

constexpr int32_t kUnknown = -2;
constexpr int64_t kMaxNodes = 200'000;
constexpr int64_t kMaxRepeats = 10'000;
constexpr int64_t kMaxPatternDepth = 200;

PatternPtr byte_of(uint8_t first, uint8_t last) {
  return std::make_shared<const Pattern>(
      Pattern{.kind = Pattern::kByte, .first = first, .last = last});
}

// Characters of one length in UTF-8 whose bytes after `at` take all values: splits the range so
// that each part is a product of byte ranges.
void add_utf8_range(char32_t first, char32_t last, std::vector<PatternPtr>& options) {
  constexpr std::array<char32_t, 4> kLast = {0x7F, 0x7FF, 0xFFFF, kLastCharacter};
  for (const char32_t end : kLast) {
    if (first <= end && end < last) {
      add_utf8_range(first, end, options);
      add_utf8_range(end + 1, last, options);
      return;
    }
  }
  for (int shift = 6; first > 0x7F && shift <= 18; shift += 6) {
    const char32_t mask = (char32_t{1} << shift) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      add_utf8_range(first, first | mask, options);
      add_utf8_range((first | mask) + 1, last, options);
      return;
    }
    if ((last & mask) != mask) {
      add_utf8_range(first, (last & ~mask) - 1, options);
      add_utf8_range(last & ~mask, last, options);
      return;
    }
  }
  char low[4];
  char high[4];
  const auto length = static_cast<size_t>(write_utf8(low, first) - low);
  write_utf8(high, last);
  std::vector<PatternPtr> bytes;
  for (size_t i = 0; i < length; ++i) {
    bytes.push_back(byte_of(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  }
  options.push_back(sequence(std::move(bytes)));
}

CharacterRanges complement(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharacterRanges rest;
  char32_t begin = 0;
  for (const auto& [first, last] : ranges) {
    if (first > begin) rest.emplace_back(begin, first - 1);
    begin = std::max<char32_t>(begin, last + 1);
  }
  if (begin <= kLastCharacter) rest.emplace_back(begin, kLastCharacter);
  return rest;
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view regex) : all_(regex), rest_(regex) {}

  PatternPtr whole() {
    if (rest_.starts_with('^')) rest_.remove_prefix(1);
    PatternPtr pattern = alternatives();
    if (!rest_.empty()) fail("has a ) without (");
    return pattern;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw ConfigError(fmt::format("the regular expression {} {} at byte {}", shortened(all_),
                                  problem, all_.size() - rest_.size()));
  }
  bool takes(char c) {
    const bool found = rest_.starts_with(c);
    if (found) rest_.remove_prefix(1);
    return found;
  }
  char32_t next() {
    if (rest_.empty()) fail("ends too early");
    const CodePoint c = decode_utf8(rest_.data(), rest_.data() + rest_.size());
    rest_.remove_prefix(static_cast<size_t>(c.length));
    return c.value;
  }

  PatternPtr alternatives() {
    if (++depth_ > kMaxPatternDepth) fail("is nested too deeply");
    std::vector<PatternPtr> options = {concatenation()};
    while (takes('|')) options.push_back(concatenation());
    --depth_;
    return options.size() == 1 ? options.front() : choice(std::move(options));
  }

  PatternPtr concatenation() {
    std::vector<PatternPtr> parts;
    while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
      if (rest_ == "$") {
        rest_ = {};
        break;
      }
      parts.push_back(quantified(atom()));
    }
    return sequence(std::move(parts));
  }

  PatternPtr quantified(PatternPtr part) {
    for (int64_t count = 0;; ++count) {
      if (count > kMaxPatternDepth) fail("is nested too deeply");
      if (takes('*')) {
        part = repeated(part, 0, -1);
      } else if (takes('+')) {
        part = repeated(part, 1, -1);
      } else if (takes('?')) {
        part = repeated(part, 0, 1);
      } else if (takes('{')) {
        const int64_t least = number();
        int64_t most = least;
        if (takes(',')) most = rest_.starts_with('}') ? -1 : number();
        if (!takes('}')) fail("lacks a }");
        if (most >= 0 && most < least) fail("has a repetition {m,n} with n below m");
        part = repeated(part, least, most);
      } else {
        return part;
      }
      takes('?');  // the set of texts is the same
    }
  }

  int64_t number() {
    int64_t value = 0;
    bool has_digit = false;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      value = value * 10 + (rest_.front() - '0');
      if (value > kMaxRepeats) fail(fmt::format("repeats more than {} times", kMaxRepeats));
      has_digit = true;
      rest_.remove_prefix(1);
    }
    if (!has_digit) fail("lacks a number");
    return value;
  }

  PatternPtr atom() {
    if (takes('(')) {
      if (takes('?') && !takes(':')) fail("has a group (?..) that is not supported");
      PatternPtr inner = alternatives();
      if (!takes(')')) fail("lacks a )");
      return inner;
    }
    if (takes('[')) return character_of(ranges_in_brackets());
    if (takes('.')) return character_of(complement({{'\n', '\n'}}));
    if (takes('\\')) return character_of(escaped());
    if (rest_.front() == '^' || rest_.front() == '$') fail("has an anchor inside");
    if (rest_.front() == '*' || rest_.front() == '+' || rest_.front() == '?') {
      fail("repeats nothing");
    }
    const char32_t c = next();
    return character_of({{c, c}});
  }

  CharacterRanges ranges_in_brackets() {
    const bool is_negated = takes('^');
    CharacterRanges ranges;
    bool is_first = true;
    while (is_first || !rest_.starts_with(']')) {
      is_first = false;
      CharacterRanges one;
      if (takes('\\')) {
        one = escaped();
      } else {
        const char32_t c = next();
        one = {{c, c}};
      }
      const bool is_range = rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']' &&
                            one.size() == 1 && one[0].first == one[0].second;
      if (is_range) {
        rest_.remove_prefix(1);
        const CharacterRanges end = takes('\\') ? escaped() : [&] {
          const char32_t c = next();
          return CharacterRanges{{c, c}};
        }();
        if (end.size() != 1 || end[0].first != end[0].second || end[0].first < one[0].first) {
          fail("has a range in [] that ends before it begins");
        }
        one[0].second = end[0].first;
      }
      ranges.insert(ranges.end(), one.begin(), one.end());
    }
    rest_.remove_prefix(1);
    return is_negated ? complement(std::move(ranges)) : ranges;
  }

  // The escape sequence behind a backslash.
  CharacterRanges escaped() {
    CharacterRanges digits = {{'0', '9'}};
    CharacterRanges words = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    CharacterRanges spaces = {{'\t', '\r'}, {' ', ' '}};
    const char32_t c = next();
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return complement(digits);
      case 'w':
        return words;
      case 'W':
        return complement(words);
      case 's':
        return spaces;
      case 'S':
        return complement(spaces);
      case 'n':
        return {{'\n', '\n'}};
      case 't':
        return {{'\t', '\t'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x':
        return one_of_code(2);
      case 'u':
        return one_of_code(4);
      default:
        break;
    }
    const bool is_known =
        c >= 0x80 || !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
    if (!is_known) fail(fmt::format("has the escape \\{}, which is not supported,", char(c)));
    return {{c, c}};
  }

  CharacterRanges one_of_code(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = next() | 0x20;
      const bool is_letter = c >= 'a' && c <= 'f';
      if (!is_letter && (c < '0' || c > '9')) fail("has an escape with too few digits");
      value = value * 16 + (is_letter ? c - 'a' + 10 : c - '0');
    }
    return {{value, value}};
  }

  std::string_view all_;
  std::string_view rest_;
  int64_t depth_ = 0;
};

}  // namespace

PatternPtr literal(std::string_view text) {
  std::vector<PatternPtr> bytes;
  for (const char c : text) {
    bytes.push_back(byte_of(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  }
  return sequence(std::move(bytes));
}

PatternPtr character_of(const CharacterRanges& ranges) {
  constexpr char32_t kFirstSurrogate = 0xD800;
  constexpr char32_t kLastSurrogate = 0xDFFF;
  std::vector<PatternPtr> options;
  for (const auto& [first, last] : ranges) {  // surrogates are no characters
    if (first < kFirstSurrogate) {
      add_utf8_range(first, std::min<char32_t>(last, kFirstSurrogate - 1), options);
    }
    if (last > kLastSurrogate) {
      add_utf8_range(std::max<char32_t>(first, kLastSurrogate + 1), last, options);
    }
  }
  return options.size() == 1 ? options.front() : choice(std::move(options));
}

PatternPtr sequence(std::vector<PatternPtr> parts) {
  return std::make_shared<const Pattern>(
      Pattern{.kind = Pattern::kSequence, .parts = std::move(parts)});
}
PatternPtr choice(std::vector<PatternPtr> options) {
  return std::make_shared<const Pattern>(
      Pattern{.kind = Pattern::kChoice, .parts = std::move(options)});
}
PatternPtr repeated(PatternPtr part, int64_t least, int64_t most) {
  return std::make_shared<const Pattern>(
      Pattern{.kind = Pattern::kRepeat, .parts = {std::move(part)}, .least = least, .most = most});
}
PatternPtr separated(PatternPtr item, PatternPtr separator) {
  return std::make_shared<const Pattern>(
      Pattern{.kind = Pattern::kSeparated, .parts = {std::move(item), std::move(separator)}});
}

PatternPtr pattern_of_regex(std::string_view regex) { return RegexParser(regex).whole(); }

size_t PatternAutomaton::SetHash::operator()(const std::vector<int32_t>& set) const {
  const auto* bytes = reinterpret_cast<const char*>(set.data());
  return std::hash<std::string_view>()({bytes, set.size() * sizeof(int32_t)});
}

PatternAutomaton::PatternAutomaton(const Pattern& pattern) {
  const Fragment whole = build(pattern);
  end_ = whole.end;
  // Bytes at which some range begins or ends part the classes.
  std::array<bool, 257> begins = {};
  begins[0] = true;
  for (const Node& node : nodes_) {
    if (!node.reads) continue;
    begins[node.first] = true;
    begins[static_cast<size_t>(node.last) + 1] = true;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) samples_.push_back(static_cast<uint8_t>(byte));
    classes_.push_back(static_cast<uint8_t>(samples_.size() - 1));
  }
  // The start is the first state.
  nodes_.push_back({.to = whole.begin});
  clear();
}

void PatternAutomaton::clear() {
  sets_.clear();
  accepting_.clear();
  transitions_.clear();
  states_.clear();
  state_of({static_cast<int32_t>(nodes_.size()) - 1});
}

int32_t PatternAutomaton::add(Node node) {
  if (std::ssize(nodes_) >= kMaxNodes) {
    throw ConfigError(
        fmt::format("the pattern needs more than {} states; write a smaller one", kMaxNodes));
  }
  nodes_.push_back(node);
  return static_cast<int32_t>(nodes_.size()) - 1;
}

PatternAutomaton::Fragment PatternAutomaton::chained(Fragment a, Fragment b) {
  nodes_[static_cast<size_t>(a.end)].to = b.begin;
  return {a.begin, b.end};
}

PatternAutomaton::Fragment PatternAutomaton::optional(Fragment part) {
  const int32_t end = add({});
  const int32_t begin = add({.to = part.begin, .or_to = end});
  nodes_[static_cast<size_t>(part.end)].to = end;
  return {begin, end};
}

// Thompson 1968, doi:10.1145/363347.363387. The end of a fragment goes nowhere yet.
PatternAutomaton::Fragment PatternAutomaton::build(const Pattern& pattern) {
  switch (pattern.kind) {
    case Pattern::kByte: {
      const int32_t end = add({});
      return {add({.reads = true, .first = pattern.first, .last = pattern.last, .to = end}), end};
    }
    case Pattern::kSequence: {
      const int32_t begin = add({});
      Fragment whole = {begin, begin};
      for (const PatternPtr& part : pattern.parts) whole = chained(whole, build(*part));
      return whole;
    }
    case Pattern::kChoice: {
      const int32_t end = add({});
      int32_t begin = -1;
      for (const PatternPtr& part : pattern.parts) {
        const Fragment one = build(*part);
        nodes_[static_cast<size_t>(one.end)].to = end;
        begin = add({.to = one.begin, .or_to = begin});
      }
      return {begin < 0 ? add({}) : begin, end};
    }
    case Pattern::kRepeat: {
      const Pattern& part = *pattern.parts.front();
      const int32_t begin = add({});
      Fragment whole = {begin, begin};
      for (int64_t i = 0; i < pattern.least; ++i) whole = chained(whole, build(part));
      if (pattern.most < 0) {
        const Fragment loop = build(part);
        const int32_t end = add({});
        const int32_t fork = add({.to = loop.begin, .or_to = end});
        nodes_[static_cast<size_t>(loop.end)].to = fork;
        return chained(whole, {fork, end});
      }
      for (int64_t i = pattern.least; i < pattern.most; ++i) {
        whole = chained(whole, optional(build(part)));
      }
      return whole;
    }
    case Pattern::kSeparated: {
      const Fragment item = build(*pattern.parts[0]);
      const Fragment separator = build(*pattern.parts[1]);
      const int32_t end = add({});
      nodes_[static_cast<size_t>(item.end)].to = separator.begin;
      nodes_[static_cast<size_t>(item.end)].or_to = end;
      nodes_[static_cast<size_t>(separator.end)].to = item.begin;
      return {item.begin, end};
    }
  }
  return {};
}

// The state of these nodes and all that they reach without reading.
PatternAutomaton::State PatternAutomaton::state_of(std::vector<int32_t> nodes) {
  std::vector<int32_t> set;
  std::vector<bool> seen(nodes_.size());
  bool accepts_end = false;
  while (!nodes.empty()) {
    const int32_t at = nodes.back();
    nodes.pop_back();
    if (at < 0 || seen[static_cast<size_t>(at)]) continue;
    seen[static_cast<size_t>(at)] = true;
    const Node& node = nodes_[static_cast<size_t>(at)];
    accepts_end = accepts_end || at == end_;
    if (node.reads) {
      set.push_back(at);
    } else {
      nodes.push_back(node.to);
      nodes.push_back(node.or_to);
    }
  }
  if (set.empty() && !accepts_end) return kDead;
  std::sort(set.begin(), set.end());
  if (accepts_end) set.push_back(-1);
  const auto [place, is_new] = states_.emplace(set, static_cast<State>(sets_.size()));
  if (is_new) {
    sets_.push_back(std::move(set));
    accepting_.push_back(accepts_end);
    transitions_.resize(transitions_.size() + samples_.size(), kUnknown);
  }
  return place->second;
}

PatternAutomaton::State PatternAutomaton::next(State state, uint8_t byte) {
  const size_t place = static_cast<size_t>(state) * samples_.size() + classes_[byte];
  if (transitions_[place] != kUnknown) return transitions_[place];
  std::vector<int32_t> nodes;
  for (const int32_t at : sets_[static_cast<size_t>(state)]) {
    if (at < 0) continue;
    const Node& node = nodes_[static_cast<size_t>(at)];
    if (byte >= node.first && byte <= node.last) nodes.push_back(node.to);
  }
  const State to = nodes.empty() ? kDead : state_of(std::move(nodes));
  transitions_[place] = to;
  return to;
}

}  // namespace megatron
