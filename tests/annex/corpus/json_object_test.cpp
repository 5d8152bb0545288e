#include "annex/corpus/json_object.h"

#include <gmock/gmock.h>

namespace megatron::corpus {
namespace {

using testing::HasSubstr;
using testing::IsNull;
using testing::Optional;
using testing::Pointee;

std::string rewritten(std::string_view line) {
  JsonObject object;
  EXPECT_EQ(object.parse(line), std::nullopt) << line;
  return object.line();
}

TEST(JsonObject, WritesTheLineAsPythonDoes) {
  EXPECT_EQ(
      rewritten(R"({"a":1,"b":[1,[],{}, {"x":null,"y":[true,false]}],"c":{"d":"e","f":2}})"),
      R"({"a": 1, "b": [1, [], {}, {"x": null, "y": [true, false]}], "c": {"d": "e", "f": 2}})");
  EXPECT_EQ(rewritten("{}"), "{}");
  EXPECT_EQ(rewritten(R"({"k":[[1,2],[3]]})"), R"({"k": [[1, 2], [3]]})");
}

TEST(JsonObject, KeepsTheDigitsOfNumbers) {
  const char* const line = R"({"a": 123456789012345678901234567890, "b": 1.50, "c": -7, "d": 1e5})";
  EXPECT_EQ(rewritten(line), line);
}

TEST(JsonObject, LeavesNonAsciiUnescaped) {
  EXPECT_EQ(rewritten("{\"\\u00e9\": \"\\u4f60\xF0\x9F\x98\x80 \\n\\u0001\\\"\"}"),
            "{\"\xC3\xA9\": \"\xE4\xBD\xA0\xF0\x9F\x98\x80 \\n\\u0001\\\"\"}");
}

TEST(JsonObject, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(rewritten(R"({"a": 1, "b": 2, "a": "x"})"), R"({"a": "x", "b": 2})");
}

TEST(JsonObject, MembersAreReadAndChanged) {
  JsonObject object;
  EXPECT_EQ(object.parse(R"({"text": "a\tb", "n": 3, "deep": {"text": "no"}})"), std::nullopt);
  EXPECT_THAT(object.text("text"), Pointee(std::string("a\tb")));
  EXPECT_THAT(object.text("n"), IsNull());
  EXPECT_THAT(object.json("n"), Pointee(std::string("3")));
  EXPECT_THAT(object.json("none"), IsNull());
  object.set_text("text", "c");
  object.set_text("id", "d\"");
  EXPECT_EQ(object.line(), R"({"text": "c", "n": 3, "deep": {"text": "no"}, "id": "d\""})");
}

TEST(JsonObject, ProblemsAreNamed) {
  JsonObject object;
  EXPECT_THAT(object.parse(" \t"), Optional(HasSubstr("the line is blank")));
  for (const char* const line : {"[1]", "3", "\"text\"", "null", "1.5", "true"}) {
    EXPECT_THAT(object.parse(line), Optional(HasSubstr("another value than a JSON object")))
        << line;
  }
  for (const char* const line : {"{\"a\": }", "{\"a\": 1", "{\"a\": NaN}", "{\"a\": \"\\ud800\"}",
                                 "{\"a\": \"\xFF\"}", "{} {}"}) {
    EXPECT_THAT(object.parse(line), Optional(HasSubstr("error"))) << line;
  }
}

}  // namespace
}  // namespace megatron::corpus
