#include "megatron/tokenizers/unicode.h"

#include <gmock/gmock.h>

#include <map>

#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

TEST(CharClasses, CountsOfUnicode15) {
  const CharClasses classes;
  std::map<CharClass, int64_t> counts;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) ++counts[classes.of(c)];
  EXPECT_EQ(counts[CharClass::kLetter], 136104);
  EXPECT_EQ(counts[CharClass::kNumber], 1831);
  EXPECT_EQ(counts[CharClass::kSpace], 25);
  EXPECT_EQ(counts[CharClass::kNonAscii], 0);
}

TEST(CharClasses, BytesAgreeWithCodePoints) {
  const CharClasses classes;
  for (int c = 0; c < 128; ++c) {
    EXPECT_EQ(classes.ascii(static_cast<char>(c)), classes.of(static_cast<char32_t>(c))) << c;
  }
  EXPECT_EQ(classes.ascii(static_cast<char>(0x80)), CharClass::kNonAscii);
  EXPECT_EQ(classes.ascii(static_cast<char>(0xFF)), CharClass::kNonAscii);
}

TEST(CharClasses, WhiteSpaceIsUnicodes) {
  const CharClasses classes;
  for (const char32_t c :
       {0x09u, 0x0Du, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x2000u, 0x200Au, 0x2028u, 0x3000u}) {
    EXPECT_EQ(classes.of(c), CharClass::kSpace) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {0x1Cu, 0x1Fu, 0x180Eu, 0x200Bu, 0xFEFFu}) {
    EXPECT_EQ(classes.of(c), CharClass::kOther) << static_cast<uint32_t>(c);
  }
}

TEST(NormalForms, WhatBeginsNfcStaysAndJoinsNothingBeforeIt) {
  for (char32_t value = 0; value < 0x110000; ++value) {
    const std::u32string_view alone(&value, 1);
    const std::u32string parts = normalized(alone, NormalForm::kNfd);
    for (size_t i = 1; i < parts.size(); ++i)
      ASSERT_FALSE(begins_nfc(parts[i])) << uint32_t{parts[i]};
    if (!begins_nfc(value)) continue;
    ASSERT_EQ(normalized(alone, NormalForm::kNfc), alone) << uint32_t{value};
    // No mark, which would move before one of the highest class.
    ASSERT_EQ(normalized(std::u32string{0x345, value}, NormalForm::kNfd)[0], 0x345u)
        << uint32_t{value};
  }
}

TEST(Utf8, EveryCodePointSurvives) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const CodePoint back = decode_utf8(text.data(), text.data() + text.size());
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.length, static_cast<int64_t>(text.size()));
  }
}

TEST(Utf8, EachMaximalInvalidSubpartBecomesOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(with_valid_utf8("plain"), "plain");
  EXPECT_EQ(with_valid_utf8("a\x80z"), "a" + r + "z");
  EXPECT_EQ(with_valid_utf8("\xE4\xBD"), r);                      // cut short
  EXPECT_EQ(with_valid_utf8("\xF0\x9F\x98z"), r + "z");           // cut short
  EXPECT_EQ(with_valid_utf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(with_valid_utf8("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(with_valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(with_valid_utf8("\xF1\x80\x80\xE1\x80\xC2z"), r + r + r + "z");
}

}  // namespace
}  // namespace megatron
