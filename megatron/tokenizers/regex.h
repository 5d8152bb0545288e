#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A regular expression of a tokenizer file, over UTF-8 text, run by PCRE2's JIT. Immutable, so
// thread safe.
//
// The files use the syntax of other libraries, so the pattern is translated first:
//   \s \w \d \p{L} \p{N} \p{M} and subclasses are those of Unicode 15.0 (PCRE2 10.42 has 14.0);
//   a class inside a class, [a[bc]], means their union;
//   \uHHHH is a code point; ^ and $ match at each line.
class Regex {
 public:
  // Throws FormatError with the pattern, the place and the reason.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  // Replaces `matches` by all matches, from left to right. An empty match directly after another
  // match does not count. REQUIRES: text is valid UTF-8.
  void find_all(std::string_view text, std::vector<Match>& matches) const;

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

// Escapes all metacharacters.
std::string regex_escaped(std::string_view text);

}  // namespace megatron
