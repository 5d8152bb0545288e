#include "megatron/core/printable.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(PrintableTest, EscapesWhatMovesATerminal) {
  EXPECT_EQ(printable("plain, \xC3\xA9 \xF0\x9F\x98\x80"), "plain, \xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(printable(std::string_view("\x1b[2J\r\n\t\0\x7F", 9)),
            "\\u001b[2J\\u000d\\u000a\\u0009\\u0000\\u007f");
  EXPECT_EQ(printable("\xC2\x80\xC2\x9B\xC2\x9F\xC2\xA0"), "\\u0080\\u009b\\u009f\xC2\xA0");
  EXPECT_EQ(printable("\xE2\x80\xAA\xE2\x80\xAE\xE2\x81\xA6\xE2\x81\xA9\xE2\x80\xA8"),
            "\\u202a\\u202e\\u2066\\u2069\\u2028");
}

TEST(PrintableTest, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("a\xFF"), "a\\xff");
  EXPECT_EQ(printable("\xC3(\x9B"), "\\xc3(\\x9b");
  EXPECT_EQ(printable("\xE2\x80"), "\\xe2\\x80");           // cut off
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(printable("\xC0\x80\xF5\x80\x80\x80"), "\\xc0\\x80\\xf5\\x80\\x80\\x80");
}

TEST(PrintableTest, ShortensBetweenCharacters) {
  EXPECT_EQ(shortened("short"), "short");
  EXPECT_EQ(shortened(std::string(80, 'a')), std::string(80, 'a'));
  EXPECT_EQ(shortened(std::string(81, 'a')), std::string(80, 'a') + "... (81 bytes)");
  EXPECT_EQ(shortened("\xC3\xA9\xC3\xA9\xC3\xA9", 5), "\xC3\xA9\xC3\xA9... (6 bytes)");
  EXPECT_EQ(shortened("\x01\x02", 8), "\\u0001... (2 bytes)");
}

}  // namespace
}  // namespace megatron
