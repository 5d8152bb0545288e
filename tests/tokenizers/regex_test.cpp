#include "megatron/tokenizers/regex.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> regex_matches_of(const Regex& regex, std::string_view text) {
  std::vector<Regex::Match> places;
  regex.find_all(text, places);
  std::vector<std::string> matches;
  for (const Regex::Match& place : places) {
    matches.emplace_back(text.substr(place.begin, place.end - place.begin));
  }
  return matches;
}

std::vector<std::string> regex_matches_of(std::string_view pattern, std::string_view text) {
  return regex_matches_of(Regex(pattern), text);
}

TEST(Regex, FindsAllMatches) {
  EXPECT_THAT(regex_matches_of("b+", "abbcb"), ElementsAre("bb", "b"));
  EXPECT_THAT(regex_matches_of("b+", ""), ElementsAre());
  EXPECT_THAT(regex_matches_of("x*", "axb"), ElementsAre("", "x", ""));
  EXPECT_THAT(regex_matches_of("(?=[A-Z])", "aBcD"), ElementsAre("", ""));
  EXPECT_THAT(regex_matches_of("^.", "a\nb"), ElementsAre("a", "b"));
}

TEST(Regex, ClassesAreThoseOfUnicode15) {
  // A letter, a mark and a digit that are new in Unicode 15.0.
  const std::string text = "\U00011F04\U00011F00\U00011F50\u180E";
  EXPECT_THAT(regex_matches_of(R"(\p{L})", text), ElementsAre("\U00011F04"));
  EXPECT_THAT(regex_matches_of(R"([\p{Lo}])", text), ElementsAre("\U00011F04"));
  EXPECT_THAT(regex_matches_of(R"(\p{M})", text), ElementsAre("\U00011F00"));
  EXPECT_THAT(regex_matches_of(R"([^\p{L}\p{M}\s])", text), ElementsAre("\U00011F50", "\u180E"));
  EXPECT_THAT(regex_matches_of(R"(\d)", text), ElementsAre("\U00011F50"));
  EXPECT_THAT(regex_matches_of(R"(\w+)", text), ElementsAre("\U00011F04\U00011F00\U00011F50"));
  // U+180E is no white space, U+0085 is.
  EXPECT_THAT(regex_matches_of(R"(\s)", "\u180E\u0085"), ElementsAre("\u0085"));
  EXPECT_THAT(regex_matches_of(R"(\S)", "\u180E\u0085"), ElementsAre("\u180E"));
  EXPECT_THAT(regex_matches_of(R"(\W+)", "a\u2460b"), ElementsAre("\u2460"));
}

TEST(Regex, AClassInsideAClassIsAUnion) {
  EXPECT_THAT(regex_matches_of(R"( ?[^(\s|[.,!?])]+)", "ab c. (d)|e"),
              ElementsAre("ab", " c", "d", "e"));
  EXPECT_THAT(regex_matches_of("[a[bc]d]+", "xabcdx"), ElementsAre("abcd"));
  EXPECT_THAT(regex_matches_of("[]a]+", "x]ax"), ElementsAre("]a"));
  EXPECT_THAT(regex_matches_of("[^]a]+", "x]ax"), ElementsAre("x", "x"));
  EXPECT_THAT(regex_matches_of(R"([\]a]+)", "x]ax"), ElementsAre("]a"));
}

TEST(Regex, CodePointsByTheirNumber) {
  EXPECT_THAT(regex_matches_of(R"([\u00e9\u4E2D]+)", "a\u00E9\u4E2Db"),
              ElementsAre("\u00E9\u4E2D"));
}

TEST(Regex, LongTextsNeedNoLongStack) {
  const Regex regex(R"((?:(?:a|b)|(?:c|d))+x?)");
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(regex_matches_of(regex, text).at(0).size(), text.size());
}

TEST(Regex, ErrorsShowThePattern) {
  EXPECT_THAT(
      message_of([] { Regex("(a"); }),
      HasSubstr("the regular expression \"(a\" cannot be read: missing closing parenthesis"));
  EXPECT_THAT(message_of([] { Regex("[a&&b]"); }), HasSubstr("the intersection && of two classes"));
  EXPECT_THAT(message_of([] { Regex("[a[^b]]"); }), HasSubstr("a class [^ ] inside a class"));
  EXPECT_THAT(message_of([] { Regex(R"(\p{L)"); }), HasSubstr("a property without }"));
}

TEST(Regex, EscapesWhatHasAMeaning) {
  EXPECT_THAT(regex_matches_of(regex_escaped("a.b*[\u00E9"), "axb a.b*[\u00E9"),
              ElementsAre("a.b*[\u00E9"));
}

}  // namespace
}  // namespace megatron
