#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "megatron/tokenizers/unicode.h"

namespace megatron {

// Letters, blanks, controls, marks, ideographs, emoji, and any other code point.
class RandomTexts {
 public:
  explicit RandomTexts(uint64_t seed) : random_(seed) {}

  std::string next() {
    std::string text;
    for (uint64_t parts = random_() % 20; parts > 0; --parts) append_part(text);
    return text;
  }

 private:
  void append_part(std::string& text) {
    constexpr std::u32string_view kBlanks =
        U" \t\n\v\f\r\u0085\u00A0\u1680\u2003\u2028\u202F\u3000\u180E\u200B\u200C\u200D\uFEFF"
        U"\u00AD";
    switch (random_() % 14) {
      case 0:
      case 1:
      case 2:
        return repeat(text, [&] { return U'a' + pick(26); });
      case 3:
      case 4:
        text.append(1 + pick(3), ' ');
        return;
      case 5:
        return append_utf8(text, kBlanks[pick(kBlanks.size())]);
      case 6:
        return repeat(text, [&] { return 0x300 + pick(0x70); });
      case 7:
        return repeat(text, [&] { return 0x4E00 + pick(0x5000); });
      case 8:
        return repeat(text, [&] { return 0x1F300 + pick(0x300); });
      case 9:
        return repeat(text, [&] { return U'!' + pick(32); });
      case 10:
      case 11:
        return append_words(text);
      case 12:
        return repeat(text, [&] { return pick(0x600); });
      default:
        const char32_t any = pick(0x110000);
        append_utf8(text, any >= 0xD800 && any < 0xE000 ? any - 0xD800 : any);
    }
  }
  // Words of up to 20 ASCII letters with blanks and punctuation between them.
  void append_words(std::string& text) {
    constexpr std::string_view kBetween = "      ..,'-!?\n";
    for (uint64_t words = 1 + random_() % 5; words > 0; --words) {
      for (uint64_t letters = 1 + random_() % 20; letters > 0; --letters) {
        text += static_cast<char>((random_() % 4 == 0 ? 'A' : 'a') + pick(26));
      }
      text += kBetween[pick(kBetween.size())];
    }
  }
  char32_t pick(uint64_t below) { return static_cast<char32_t>(random_() % below); }
  template <class Next>
  void repeat(std::string& text, const Next& next) {
    for (uint64_t count = 1 + random_() % 6; count > 0; --count) append_utf8(text, next());
  }

  std::mt19937_64 random_;
};

}  // namespace megatron
