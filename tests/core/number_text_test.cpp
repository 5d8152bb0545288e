#include "megatron/core/number_text.h"

#include <gtest/gtest.h>

#include <limits>

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

TEST(PythonReprTest, PrintsAsPython) {
  EXPECT_EQ(python_repr(0.0), "0.0");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(1.0), "1.0");
  EXPECT_EQ(python_repr(0.1), "0.1");
  EXPECT_EQ(python_repr(0.9500000000000001), "0.9500000000000001");
  EXPECT_EQ(python_repr(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(0.00001), "1e-05");
  EXPECT_EQ(python_repr(1e-7), "1e-07");
  EXPECT_EQ(python_repr(1.5e-300), "1.5e-300");
  EXPECT_EQ(python_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(1e22), "1e+22");
  EXPECT_EQ(python_repr(123456.789), "123456.789");
  EXPECT_EQ(python_repr(std::numeric_limits<double>::infinity()), "Infinity");
}

}  // namespace
}  // namespace megatron
