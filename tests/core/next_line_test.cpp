#include "megatron/core/next_line.h"

#include <gmock/gmock.h>

#include <sstream>

#include "tests/support/message_of.h"

namespace megatron {
namespace {

TEST(NextLineTest, ReadsTheLinesOfGetline) {
  for (const char* text : {"", "\n", "a", "a\n", "a\nb", "\n\na\r\nb\n", "a\n\n"}) {
    std::istringstream ours(text);
    std::istringstream theirs(text);
    std::string line;
    std::string want;
    int64_t number = 1;
    for (; std::getline(theirs, want); ++number) {
      ASSERT_TRUE(next_line(ours, line, number, "f")) << testing::PrintToString(text);
      EXPECT_EQ(line, want);
    }
    EXPECT_FALSE(next_line(ours, line, number, "f")) << testing::PrintToString(text);
    EXPECT_FALSE(next_line(ours, line, number, "f"));
  }
}

// Gives the same byte for ever.
class Endless : public std::streambuf {
  int_type underflow() override {
    setg(&byte_, &byte_, &byte_ + 1);
    return traits_type::to_int_type(byte_);
  }
  char byte_ = 'a';
};

TEST(NextLineTest, ALineHasALimit) {
  Endless bytes;
  std::istream in(&bytes);
  std::string line;
  EXPECT_THAT(message_of<FormatError>([&] { next_line(in, line, 7, "standard input"); }),
              testing::StartsWith("standard input: line 7 is longer than 134217728 bytes; split"));
}

}  // namespace
}  // namespace megatron
