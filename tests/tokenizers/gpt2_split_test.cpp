#include "megatron/tokenizers/gpt2_split.h"

#include <gmock/gmock.h>

#include <memory>
#include <random>

#include "megatron/tokenizers/unicode_text.h"
#include "tests/support/rounds.h"

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

// MG_FUZZ_STRINGS sets the number of texts.
int64_t num_texts() { return random_texts(40000); }

void expect_plain_words(const std::u32string& text, const CharClasses& classes) {
  std::string bytes;
  for (const char32_t c : text) append_utf8(bytes, c);
  // A buffer of its own, so that a sanitizer sees each byte that is read behind the text.
  const auto buffer = std::make_unique<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer.get());
  std::vector<std::string> got;
  gpt2_split({buffer.get(), bytes.size()}, classes,
             [&](std::string_view piece) { got.emplace_back(piece); });
  std::vector<std::string> want;
  for (const std::u32string& piece : plain_split(text, classes)) {
    want.emplace_back();
    for (const char32_t c : piece) append_utf8(want.back(), c);
  }
  ASSERT_EQ(got, want) << bytes;
}

TEST(Gpt2Split, EqualsThePlainRulesOnRandomText) {
  const std::u32string alphabet =
      U"abstmdrevl'''    \t\n\r09-.,!\u00A0\u2028\u3000\u180E\u200B\u0301\u00E9\u4E2D\u00B2\u0660"
      U"\U0001F600\U00020000\U0001D7D8\u0085\u001C";
  const CharClasses classes;
  std::mt19937 random(7);
  for (int64_t round = 0; round < num_texts(); ++round) {
    std::u32string text;
    const size_t length = random() % 24;
    for (size_t i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
    expect_plain_words(text, classes);
    if (HasFatalFailure()) return;
  }
}

// Long runs of ASCII are cut 64 bytes at a time: every rule must hold across every border.
TEST(Gpt2Split, EqualsThePlainRulesOnLongRandomText) {
  const std::u32string ascii =
      U"aZbstmdrevl'''    \t\n\v\r09-.,!@[`{/:\u001C\u007F" + std::u32string(1, U'\0');
  const std::u32string others =
      U"\u00A0\u0085\u3000\u00E9\u4E2D\u0660\u0301\U0001F600"
      U"\u2009\u200F\u2010\u2013\u2019\u201C\u2027\u2028\u2110\u3010";
  const CharClasses classes;
  std::mt19937 random(11);
  for (int64_t round = 0; round < num_texts() / 4; ++round) {
    std::u32string text;
    const size_t length = 50 + random() % 200;
    const size_t rarity = 1 + random() % 300;  // of characters beyond ASCII
    const size_t most = 1 + random() % 20;     // length of runs of one character
    while (text.size() < length) {
      const bool plain = random() % rarity != 0;
      const std::u32string& from = plain ? ascii : others;
      const char32_t c = from[random() % from.size()];
      text.append(random() % 4 == 0 ? 1 + random() % most : 1, c);
    }
    expect_plain_words(text, classes);
    if (HasFatalFailure()) return;
  }
}

TEST(Gpt2Split, WordsOfEveryLengthAtEveryPlaceOfABlock) {
  const CharClasses classes;
  for (const char* word : {"a", "'s", "'ll", "'l", " ", "  ", "\n", "7", "!", " 's", "\xC3\xA9",
                           "\xE2\x80\x99", "\xE2\x80\x99s", " \xE2\x80\x9C", "\xE2\x80\xA8"}) {
    for (size_t before = 0; before < 140; ++before) {
      for (const char letter : {'x', ' ', '.', '\n'}) {
        const std::string text = std::string(before, letter) + word + std::string(70, 'q');
        expect_plain_words(code_points(text), classes);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
