#include "megatron/tasks/detokenize.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

std::string wiki(std::string_view text) { return detokenized(text, Detokenizer::kWikiText); }
std::string ptb(std::string_view text) { return detokenized(text, Detokenizer::kPennTreebank); }

TEST(DetokenizerTest, UndoesTheBlanksOfWikiText) {
  EXPECT_EQ(wiki("1 @,@ 000 guest @-@ stars , 3 @.@ 5 : a ; b . c ! d ? e"),
            "1,000 guest-stars, 3.5: a; b. c! d? e");
  EXPECT_EQ(wiki("( a b ) [ c ] { d }"), "(a b) [c] {d}");
  EXPECT_EQ(wiki("( a ( b ) c )"), "(a ( b) c )");  // the first that closes
  EXPECT_EQ(wiki("( \n\u00a0a\u2003 )"), "(a)");
  EXPECT_EQ(wiki("( never closed"), "( never closed");
  EXPECT_EQ(wiki("\" a \" b \" c \" d \""), "\"a\" b \"c\" d \"");
  EXPECT_EQ(wiki("Teddy 's Story"), "Teddy's Story");
  EXPECT_EQ(wiki("the boys ' game"), "the boys' game");
  EXPECT_EQ(wiki("it 's the dog 's bone"), "it's the dog's bone");
  EXPECT_EQ(wiki(" = Title = \n = = Part = = \n"), " = Title =\n== Part ==\n");
  EXPECT_EQ(wiki("= = = = x = = ="), "==== x ===");
  EXPECT_EQ(wiki("20 \u00b0 N and N miles"), "20\u00b0N and 1 miles");
  EXPECT_EQ(wiki("/' 7/"), "/'[0-9]/");
  EXPECT_EQ(wiki(""), "");
}

TEST(DetokenizerTest, UndoesTheBlanksOfPennTreebank) {
  EXPECT_EQ(ptb("he does n't own N of $ 1 's\n so \n"), "he doesn't own1 of $1's\nso\n");
}

TEST(DetokenizerTest, IsChosenByThePath) {
  EXPECT_EQ(detokenizer_of("data/ptb.wiki"), Detokenizer::kPennTreebank);
  EXPECT_EQ(detokenizer_of("wikitext-103/test.txt"), Detokenizer::kWikiText);
  EXPECT_EQ(detokenizer_of("lambada.json"), Detokenizer::kNone);
  EXPECT_EQ(detokenizer_of("book.txt"), std::nullopt);
}

TEST(StrippedTest, TakesPythonsWhiteSpaceAway) {
  EXPECT_EQ(stripped(" \t\x1f\u3000 a b\u0085\n"), "a b");
  EXPECT_EQ(stripped("\u2003"), "");
  EXPECT_EQ(stripped("a"), "a");
}

}  // namespace
}  // namespace megatron
