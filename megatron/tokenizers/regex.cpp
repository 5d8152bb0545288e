#include "megatron/tokenizers/regex.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

struct Property {
  std::string_view name;
  std::string_view more;  // what Unicode 15.0 added to 14.0
};

#define MG_LL R"(\x{1DF25}-\x{1DF2A})"
#define MG_LM R"(\x{1E030}-\x{1E06D}\x{1E4EB})"
#define MG_LO                                                                      \
  R"(\x{1123F}-\x{11240}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})" \
  R"(\x{13441}-\x{13446}\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{2B739}\x{31350}-\x{323AF})"
#define MG_MN                                                                    \
  R"(\x{ECE}\x{10EFD}-\x{10EFF}\x{11241}\x{11F00}-\x{11F01}\x{11F36}-\x{11F3A})" \
  R"(\x{11F40}\x{11F42}\x{13440}\x{13447}-\x{13455}\x{1E08F}\x{1E4EC}-\x{1E4EF})"
#define MG_MC R"(\x{CF3}\x{11F03}\x{11F34}-\x{11F35}\x{11F3E}-\x{11F3F}\x{11F41})"
#define MG_ND R"(\x{11F50}-\x{11F59}\x{1E4F0}-\x{1E4F9})"
#define MG_NO R"(\x{1D2C0}-\x{1D2D3})"
#define MG_PO R"(\x{11B00}-\x{11B09}\x{11F43}-\x{11F4F})"

constexpr std::array<Property, 11> kProperties = {{
    {"L", MG_LL MG_LM MG_LO},
    {"Ll", MG_LL},
    {"Lm", MG_LM},
    {"Lo", MG_LO},
    {"M", MG_MN MG_MC},
    {"Mn", MG_MN},
    {"Mc", MG_MC},
    {"N", MG_ND MG_NO},
    {"Nd", MG_ND},
    {"No", MG_NO},
    {"P", MG_PO},
}};

// The class contents, inside [ ], for \s, \d, \w and \h.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kDigit = R"(\p{Nd})" MG_ND;
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9})"
    R"(\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})" MG_LL MG_LM MG_LO MG_MN MG_MC
        MG_ND;
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

#undef MG_LL
#undef MG_LM
#undef MG_LO
#undef MG_MN
#undef MG_MC
#undef MG_ND
#undef MG_NO
#undef MG_PO

// Translates a pattern of the tokenizer files to PCRE2's syntax.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[' && !is_posix_class()) {
        open_class();
      } else if (c == ']' && depth_ > 0) {
        ++at_;
        if (--depth_ == 0) result_ += ']';
      } else if (depth_ > 0 && pattern_.substr(at_, 2) == "&&") {
        refuse("the intersection && of two classes");
      } else {
        result_ += c;
        ++at_;
      }
    }
    return std::move(result_);
  }

 private:
  bool is_posix_class() const { return depth_ > 0 && pattern_.substr(at_, 2) == "[:"; }

  // The first character of a class may be ^, and the next may be a literal ].
  void open_class() {
    ++at_;
    const bool negated = at_ < pattern_.size() && pattern_[at_] == '^';
    if (depth_ > 0 && negated) refuse("a class [^ ] inside a class");
    if (negated) ++at_;
    if (depth_++ > 0) return;  // a union: the brackets inside can go
    result_ += negated ? "[^" : "[";
    if (at_ < pattern_.size() && pattern_[at_] == ']') {
      result_ += "\\]";
      ++at_;
    }
  }

  void escape() {
    const char kind = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (kind == 'p' && pattern_.substr(at_ + 2, 1) == "{") return property();
    if (kind == 'u' && at_ + 6 <= pattern_.size()) {  // PCRE2 writes \uHHHH as \x{HHHH}
      result_ += fmt::format("\\x{{{}}}", pattern_.substr(at_ + 2, 4));
      at_ += 6;
      return;
    }
    at_ += 2;
    switch (kind) {
      case 's':
      case 'S':
        return shorthand(kSpace, kind == 'S', kind);
      case 'd':
      case 'D':
        return shorthand(kDigit, kind == 'D', kind);
      case 'w':
      case 'W':
        return shorthand(kWord, kind == 'W', kind);
      case 'h':
      case 'H':
        return shorthand(kHexDigit, kind == 'H', kind);
      default:
        at_ -= 2;
        result_ += pattern_.substr(at_, 2);
        at_ += 2;
    }
  }

  // \S and the like inside a class have no list: PCRE2's own meaning is close enough there.
  void shorthand(std::string_view list, bool negated, char kind) {
    if (depth_ == 0) {
      result_ += fmt::format("[{}{}]", negated ? "^" : "", list);
    } else if (negated) {
      result_ += fmt::format("\\{}", kind);
    } else {
      result_ += list;
    }
  }

  void property() {
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("a property without }");
    const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    std::string_view more;
    for (const Property& known : kProperties) {
      if (known.name == name) more = known.more;
    }
    const std::string_view whole = pattern_.substr(at_, end + 1 - at_);
    result_ += depth_ > 0 || more.empty() ? fmt::format("{}{}", whole, more)
                                          : fmt::format("[{}{}]", whole, more);
    at_ = end + 1;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw FormatError(
        fmt::format("the regular expression \"{}\" has {} at byte {}, which is not "
                    "available; write the class out",
                    pattern_, what, at_));
  }

  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;  // of open [
  std::string result_;
};

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

size_t character_length(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0u) == 0x80u) ++end;
  return end - at;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::string_view pattern) : pattern_(pattern), code_(std::make_unique<Code>()) {
  const std::string translated = Translation(pattern).run();
  int error = 0;
  PCRE2_SIZE place = 0;
  code_->compiled = pcre2_compile(bytes_of(translated), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &place, nullptr);
  if (code_->compiled == nullptr) {
    throw FormatError(
        fmt::format("the regular expression \"{}\" cannot be read: {} at byte {} of "
                    "\"{}\"; correct the pattern",
                    pattern, message_of(error), place, translated));
  }
  // Without a JIT for this processor matching is slower, with the same results.
  (void)pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<Match>& matches) const {
  matches.clear();
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create(1, nullptr));
  const auto match_at = [&](size_t start) {
    int count = pcre2_match(code_->compiled, bytes_of(text), text.size(), start, PCRE2_NO_UTF_CHECK,
                            data.get(), nullptr);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter takes its stack from the heap
      count = pcre2_match(code_->compiled, bytes_of(text), text.size(), start,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), nullptr);
    }
    if (count < 0 && count != PCRE2_ERROR_NOMATCH) {
      throw FormatError(fmt::format("the regular expression \"{}\" fails on a text of {} bytes: {}",
                                    pattern_, text.size(), message_of(count)));
    }
    return count >= 0;
  };
  bool has_match = false;
  size_t last_end = 0;
  for (size_t start = 0; start <= text.size() && match_at(start);) {
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data.get());
    const Match match{place[0], place[1]};
    if (match.begin == match.end && has_match && match.end == last_end) {
      if (start >= text.size()) break;
      start += character_length(text, start);
      continue;
    }
    matches.push_back(match);
    has_match = true;
    start = last_end = match.end;
  }
}

std::string regex_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && std::ispunct(static_cast<unsigned char>(c)) != 0) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

}  // namespace megatron
