#include "megatron/inference/text_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/inference/pattern_matches.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::HasSubstr;

bool matches(const char* regex, std::string_view text) {
  return matches(pattern_of_regex(regex), text);
}

TEST(TextPatternTest, MatchesWholeTexts) {
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_TRUE(matches("^ab|cd$", "cd"));
  EXPECT_FALSE(matches("ab|cd", "abd"));
  EXPECT_TRUE(matches("a(?:b|c)*d", "abcbd"));
  EXPECT_FALSE(matches("a(b|c)+d", "ad"));
  EXPECT_TRUE(matches("a?b{2}c{1,}d{0,2}", "bbcccdd"));
  EXPECT_FALSE(matches("a?b{2}c{1,}d{0,2}", "bbccddd"));
  EXPECT_TRUE(matches("[a-c^-]+[^a-c][]x]", "a-^c-z]"));
  EXPECT_FALSE(matches("[^a-c]", "b"));
  EXPECT_TRUE(matches("\\d{3}-\\w+\\s\\S\\.\\x41\\u00e9", "123-aZ_9 !.A\xc3\xa9"));
  EXPECT_TRUE(matches("a.b",
                      "a\xe2\x82\xac"
                      "b"));
  EXPECT_FALSE(matches("a.b", "a\nb"));
  EXPECT_TRUE(matches("(a*)*b", "aaab"));
}

// Each character of a class, and those beside its ends, as UTF-8.
TEST(TextPatternTest, ReadsRangesOfCharactersAsUtf8) {
  const auto one = [](char32_t c) {
    std::string text;
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    if (c < 0x800) {
      text += static_cast<char>(0xC0 | (c >> 6));
    } else {
      if (c < 0x10000) {
        text += static_cast<char>(0xE0 | (c >> 12));
      } else {
        text += static_cast<char>(0xF0 | (c >> 18));
        text += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
      }
      text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    }
    return text + static_cast<char>(0x80 | (c & 0x3F));
  };
  const CharacterRanges ranges = {{0x41, 0x7FE}, {0x900, 0x12345}, {0x20001, 0x10FFFE}};
  const PatternPtr pattern = character_of(ranges);
  constexpr char32_t kCharacters[] = {0x40,    0x41,    0x7F,     0x80,    0x7FE,   0x7FF,
                                      0x8FF,   0x900,   0xFFF,    0x1000,  0xD7FF,  0xE000,
                                      0xFFFF,  0x10000, 0x12345,  0x12346, 0x20000, 0x20001,
                                      0x3FFFF, 0x40000, 0x10FFFE, 0x10FFFF};
  for (const char32_t c : kCharacters) {
    const bool is_in = std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
      return c >= range.first && c <= range.second;
    });
    EXPECT_EQ(matches(pattern, one(c)), is_in) << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(TextPatternTest, NamesWhatIsNotSupported) {
  const auto problem = [](const std::string& regex) {
    return message_of<ConfigError>([&] { pattern_of_regex(regex); });
  };
  EXPECT_THAT(problem("a(?=b)"),
              HasSubstr("(?=b) has a group (?..) that is not supported at byte"));
  EXPECT_THAT(problem("(a"), HasSubstr("lacks a )"));
  EXPECT_THAT(problem("a)"), HasSubstr("has a ) without ("));
  EXPECT_THAT(problem("[a"), HasSubstr("ends too early"));
  EXPECT_THAT(problem("a^b"), HasSubstr("has an anchor inside"));
  EXPECT_THAT(problem("*a"), HasSubstr("repeats nothing"));
  EXPECT_THAT(problem("a{99999}"), HasSubstr("repeats more than 10000 times"));
  EXPECT_THAT(problem("\\b"), HasSubstr("has the escape \\b, which is not supported"));
  EXPECT_THAT(problem(std::string(1000, '(')), HasSubstr("is nested too deeply"));
  EXPECT_THAT(message_of<ConfigError>(
                  [] { PatternAutomaton(*pattern_of_regex("((a{1000}){1000}){1000}")); }),
              HasSubstr("needs more than 200000 states"));
}

}  // namespace
}  // namespace megatron
