#include "megatron/tokenizers/gpt2_split.h"

#include <gmock/gmock.h>

#include <random>

namespace megatron {
namespace {

using testing::ElementsAre;

std::vector<std::string> split(std::string_view text) {
  const CharClasses classes;
  std::vector<std::string> pieces;
  gpt2_split(text, classes, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Gpt2Split, FollowsTheRegularExpression) {
  EXPECT_THAT(split(""), ElementsAre());
  EXPECT_THAT(split("The quick fox"), ElementsAre("The", " quick", " fox"));
  EXPECT_THAT(split("I'm we'LL they'll've"),
              ElementsAre("I", "'m", " we", "'", "LL", " they", "'ll", "'ve"));
  EXPECT_THAT(split(" a  b\n\nc "), ElementsAre(" a", " ", " b", "\n", "\n", "c", " "));
  EXPECT_THAT(split("tabs\tand  spaces   "),
              ElementsAre("tabs", "\t", "and", " ", " spaces", "   "));
  EXPECT_THAT(split("2023-01"), ElementsAre("2023", "-", "01"));
  EXPECT_THAT(split("x1!? \xC2\xB2"), ElementsAre("x", "1", "!?", " \xC2\xB2"));
  EXPECT_THAT(split("\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"),
              ElementsAre("\xC3\xA9\xE4\xB8\xAD", "\xF0\x9F\x98\x80"));
  EXPECT_THAT(split("\xC2\xA0x"), ElementsAre("\xC2\xA0", "x"));
  EXPECT_THAT(split(" 's"), ElementsAre(" '", "s"));
  EXPECT_THAT(split("''s'"), ElementsAre("''", "s", "'"));
  EXPECT_THAT(split("a\x80\xFF"
                    "b"),
              ElementsAre("a", "\x80\xFF", "b"));
}

// The rules over code points, as plainly as they can be written.
std::vector<std::u32string> plain_split(const std::u32string& t, const CharClasses& classes) {
  const auto cls = [&](size_t i) { return classes.of(t[i]); };
  std::vector<std::u32string> pieces;
  for (size_t i = 0; i < t.size();) {
    size_t end = i;
    if (t[i] == U'\'') {
      const std::u32string two = t.substr(i + 1, 2);
      if (two == U"re" || two == U"ve" || two == U"ll") end = i + 3;
      if (!two.empty() && std::u32string(U"stmd").find(two[0]) != std::u32string::npos) end = i + 2;
    }
    if (end == i) {
      const bool joins = t[i] == U' ' && i + 1 < t.size() && cls(i + 1) != CharClass::kSpace;
      const size_t first = joins ? i + 1 : i;
      end = first + 1;
      while (end < t.size() && cls(end) == cls(first)) ++end;
      if (cls(first) == CharClass::kSpace && end < t.size() && end - i > 1) --end;
    }
    pieces.push_back(t.substr(i, end - i));
    i = end;
  }
  return pieces;
}

TEST(Gpt2Split, EqualsThePlainRulesOnRandomText) {
  const std::u32string alphabet =
      U"abstmdrevl'''    \t\n\r09-.,!\u00A0\u2028\u3000\u180E\u200B\u0301\u00E9\u4E2D\u00B2\u0660"
      U"\U0001F600\U00020000\U0001D7D8\u0085\u001C";
  const CharClasses classes;
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::u32string text;
    std::string bytes;
    const size_t length = random() % 24;
    for (size_t i = 0; i < length; ++i) {
      text += alphabet[random() % alphabet.size()];
      append_utf8(bytes, text.back());
    }
    std::vector<std::string> want;
    for (const std::u32string& piece : plain_split(text, classes)) {
      want.emplace_back();
      for (const char32_t c : piece) append_utf8(want.back(), c);
    }
    std::vector<std::string> got;
    gpt2_split(bytes, classes, [&](std::string_view piece) { got.emplace_back(piece); });
    ASSERT_EQ(got, want) << "round " << round << ": " << bytes;
  }
}

}  // namespace
}  // namespace megatron
