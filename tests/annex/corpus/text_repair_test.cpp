#include "annex/corpus/text_repair.h"

#include <gmock/gmock.h>

namespace megatron::corpus {
namespace {

std::u32string fixed(std::u32string_view text) { return repaired(text); }

TEST(Repaired, DecodesUtf8ThatWasReadAsWindows1252) {
  EXPECT_EQ(fixed(U"caf\u00C3\u00A9"), U"caf\u00E9");
  EXPECT_EQ(fixed(U"it\u00E2\u20AC\u2122s"), U"it's");           // U+2019, then uncurled
  EXPECT_EQ(fixed(U"a\u00E2\u20AC\u201Db"), U"a\u2014b");        // a dash
  EXPECT_EQ(fixed(U"\u00C3\u0192\u00C2\u00A9"), U"\u00E9");      // read wrongly twice
  EXPECT_EQ(fixed(U"\u00F0\u0178\u02DC\u20AC"), U"\U0001F600");  // four bytes
  EXPECT_EQ(fixed(U"\u00C5\u00A1"), U"\u0161");
  EXPECT_EQ(fixed(U"\u00E4\u00BD\u00A0\u00E5\u00A5\u00BD"), U"\u4F60\u597D");
  EXPECT_EQ(fixed(U"\u00D0\u0178\u00D1\u20AC\u00D0\u00B8"), U"\u041F\u0440\u0438");
  EXPECT_EQ(fixed(U"\u00C2\u00A9 2020, \u4F60"), U"\u00A9 2020, \u4F60");
}

TEST(Repaired, DecodesLatin1WithItsControlCharacters) {
  EXPECT_EQ(fixed(U"it\u00E2\u0080\u0099s"), U"it's");
  EXPECT_EQ(fixed(U"\u00C3\u0081"), U"\u00C1");  // 0x81 is none of Windows-1252
}

TEST(Repaired, LeavesGoodTextsAlone) {
  for (const std::u32string_view text :
       {U"caf\u00E9 \u00C9t\u00E9", U"\u00C9\u00BB", U"\u00C4\u2013", U"\u00D0\u00B0 alone", U"",
        U"na\u00EFve \u20AC5 \u2026 \u2014", U"\u4F60\u597D \u041F\u0440\u0438 \U0001F600",
        U"tab\tline\nfeed\f", U"\u00C3o S\u00C3O", U"a [1m b"}) {
    EXPECT_EQ(repaired(text), text);
  }
}

TEST(Repaired, PlainCharactersReplaceVariants) {
  EXPECT_EQ(fixed(U"\uFB01x\uFB03 \uFF21\uFF01\u3000."), U"fixffi A! .");
  EXPECT_EQ(fixed(U"\u201Ca\u201D \u2018b\u2019"), U"\"a\" 'b'");
  EXPECT_EQ(fixed(U"a\r\nb\rc\u0085d\u2028e\u2029f\n"), U"a\nb\nc\nd\ne\nf\n");
  EXPECT_EQ(fixed(U"a\x01\x7F\uFEFF"
                  U"b\uFFF9"),
            U"ab");
  EXPECT_EQ(fixed(U"\x1B[31;1mred\x1B[0m"), U"red");
  EXPECT_EQ(fixed(U"e\u0301"), U"\u00E9");
}

TEST(Repaired, TakesUtf8) { EXPECT_EQ(repaired(std::string_view("\xC3\x83\xC2\xA9")), "\xC3\xA9"); }

}  // namespace
}  // namespace megatron::corpus
