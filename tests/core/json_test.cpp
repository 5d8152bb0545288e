#include "megatron/core/json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/message_of.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string repeated(std::string_view text, int64_t count) {
  std::string all;
  for (int64_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  return message_of<FormatError>([&] { parse_json(text, limits, "a.json"); });
}

TEST(JsonTest, ReadsWhatTheLibraryReads) {
  for (
      const char* text :
      {R"({"a": [1, -2, 3.5, 1e300, "x\u00e9\n", true, false, null, {}, []], "b": {"c": {"d": 1}}})",
       "[[[]],{}]", "3", "\"text\"", "null", "18446744073709551615", "-9223372036854775808",
       "\xEF\xBB\xBF{\"a\":1}", " [1 , 2 ] \n"}) {
    EXPECT_EQ(parse_json(text, {}, "t"), json::parse(text)) << text;
    EXPECT_EQ(parse_ordered_json(text, {}, "t"), nlohmann::ordered_json::parse(text)) << text;
    EXPECT_EQ(try_parse_json(text), json::parse(text)) << text;
  }
  EXPECT_EQ(dump_json(parse_ordered_json(R"({"b":1,"a":{"d":2,"c":3}})", {}, "t")),
            R"({"b":1,"a":{"d":2,"c":3}})");
}

TEST(JsonTest, NamesThePlaceAndTheProblem) {
  EXPECT_EQ(refusal("{\"a\":\n ]}"),
            "a.json: is not valid JSON at byte 8 (line 2); correct it or copy it again");
  EXPECT_THAT(refusal("{\"a\": 1"), HasSubstr("at byte 8 (line 1): it ends too early"));
  EXPECT_THAT(refusal(""), HasSubstr("it ends too early"));
  for (const char* text :
       {"\"a\xFF\"", "\"\xC3(\"", "[\"\x80\"]", "\"\xED\xA0\x80\"", "\xFF\xFE{"}) {
    EXPECT_THAT(refusal(text), HasSubstr("it is not UTF-8")) << testing::PrintToString(text);
  }
  EXPECT_THAT(refusal("[\xC3\xA9]"), Not(HasSubstr("UTF-8")));
  EXPECT_THAT(refusal("[1e400]"), HasSubstr("a number beyond all limits at byte 7"));
  EXPECT_THAT(refusal("{} x"), HasSubstr("not valid JSON at byte 4"));
  for (const char* text : {"{", "[1e999]", "\xFF", "nul", "[1,]", "{\"a\" 1}", "\"\n\""}) {
    EXPECT_THAT(refusal(text), AllOf(StartsWith("a.json: "), Not(HasSubstr("json.exception"))));
    EXPECT_TRUE(try_parse_json(text).is_discarded()) << text;
  }
}

TEST(JsonTest, DepthHasALimit) {
  const auto lists = [](int64_t depth) { return repeated("[", depth) + repeated("]", depth); };
  EXPECT_EQ(parse_json(lists(32), {}, "t").dump(), lists(32));
  EXPECT_EQ(refusal(lists(33)),
            "a.json: JSON is nested deeper than 32 levels at byte 33 (line 1); is this the right "
            "text?");
  EXPECT_THROW(parse_json(lists(1'000'000), {}, "t"), JsonTooLarge);
  EXPECT_THROW(parse_json(repeated("{\"a\":", 1'000'000), kJsonLine, "t"), JsonTooLarge);
  EXPECT_TRUE(try_parse_json(repeated("[", 1'000'000)).is_discarded());
  EXPECT_EQ(parse_json(lists(1000), kJsonLine, "t").dump(), lists(1000));
}

TEST(JsonTest, ValuesAndBytesHaveLimits) {
  const JsonLimits five = {.max_values = 5};
  EXPECT_EQ(parse_json("[1,2,[3]]", five, "t").size(), 3);  // with both lists
  EXPECT_THAT(refusal("[1,2,[3,4]]", five), HasSubstr("has more than 5 values at byte 10"));
  EXPECT_THAT(refusal(R"({"a":1,"b":{"c":{},"d":[]},"e":0})", five),
              HasSubstr("has more than 5 values"));
  EXPECT_THAT(refusal("[1,2,3]", {.max_bytes = 6}),
              HasSubstr("is JSON of 7 bytes; at most 6 are read"));
}

TEST(JsonTest, EqualKeysAreRefusedOrTheLastCounts) {
  const std::string text = R"({"a":[1],"b":{"a":2},"a":{"c":3}})";
  EXPECT_EQ(parse_json(text, {}, "t"), json::parse(text));
  EXPECT_EQ(refusal(text, {.unique_keys = true}),
            "a.json: key a occurs twice in one object at byte 24 (line 1); remove one of them");
}

TEST(JsonTest, MissingKeysAndOtherTypesAreNamedInOurWords) {
  const auto problem = [](const auto& f) {
    try {
      f();
    } catch (const json::exception& error) {
      return json_problem(error);
    }
    return std::string();
  };
  const json object = {{"a", "text"}};
  EXPECT_EQ(problem([&] { object.at("b"); }), "lacks the key b");
  EXPECT_EQ(problem([&] { object.at(std::string(1000, 'k')); }),
            "lacks the key " + std::string(80, 'k') + "... (1000 bytes)");
  EXPECT_EQ(problem([&] { object.at("a").get<int>(); }),
            "has a value of another type: it must be number, but is string");
  EXPECT_EQ(problem([&] { object.at("a").at(0); }),
            "has a value of another type than belongs there");
}

TEST(JsonTest, DumpsTextsThatAreNotUtf8) {
  EXPECT_EQ(dump_json(json{{"a\xFF", "\x80"}}), "{\"a\xEF\xBF\xBD\":\"\xEF\xBF\xBD\"}");
  EXPECT_EQ(dump_json(json{1, 2}, 1), "[\n 1,\n 2\n]");
}

TEST(JsonTest, ShortenedValuesAreShortAndPrintable) {
  EXPECT_EQ(shortened_json(R"({"a":[1,null,"x"],"b":{}})"_json), R"({"a":[1,null,"x"],"b":{}})");
  EXPECT_EQ(shortened_json("\xC2\x9B"
                           "31m\xE2\x80\xAE"),
            "\"\\u009b31m\\u202e\"");
  EXPECT_EQ(shortened_json(std::string("a\nb\xFF")), "\"a\\u000ab\\xff\"");
  json deep;
  for (int i = 0; i < 200'000; ++i) deep = json::array({std::move(deep)});
  EXPECT_EQ(shortened_json(deep), std::string(80, '[') + "...");
  EXPECT_EQ(shortened_json(std::string(1'000'000, 'a')), "\"" + std::string(79, 'a') + "...");
  EXPECT_EQ(shortened_json(json(std::vector<int>(1'000'000, 7))).size(), 83);
  EXPECT_LE(shortened_json(json{{std::string(1'000'000, '\x01'), 1}}).size(), 83);
}

}  // namespace
}  // namespace megatron
