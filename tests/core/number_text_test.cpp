#include "megatron/core/number_text.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(NumberTextTest, WholeWordsOnly) {
  EXPECT_EQ(integer_of("12"), 12);
  EXPECT_EQ(integer_of("-12"), -12);
  EXPECT_EQ(integer_of("+12"), 12);
  EXPECT_EQ(number_of("-1.5e-3"), -1.5e-3);
  for (const char* word : {"", "+", "+-1", "1e3", "1.0", "12a", " 1", "9223372036854775808"}) {
    EXPECT_FALSE(integer_of(word)) << word;
  }
}

TEST(NumberTextTest, DigitsMayBeGrouped) {
  EXPECT_EQ(integer_of("1_000_000"), 1000000);
  EXPECT_EQ(integer_of("-1_0"), -10);
  EXPECT_EQ(number_of("1_0.5e1_0"), 10.5e10);
  for (const char* word : {"_1", "1_", "1__0", "-_1", "1_.5", "1._5"}) {
    EXPECT_FALSE(number_of(word)) << word;
  }
}

}  // namespace
}  // namespace megatron
