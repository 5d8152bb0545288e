#include "megatron/serve/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/jinja/template.h"
#include "tests/inference/pattern_matches.h"
#include "tests/support/message_of.h"

namespace megatron::serve {
namespace {

using testing::HasSubstr;

bool fits(const char* schema, std::string_view text) {
  return matches(pattern_of_schema(jinja::value_of_json(schema)), text);
}

TEST(JsonSchemaTest, TakesTheTextsOfASchema) {
  const char* const schema = R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 3}, "age": {"type": "integer"},
      "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1},
      "at": {"$ref": "#/$defs/point"}}, "required": ["name", "tags"],
      "$defs": {"point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "null"}]}}})";
  EXPECT_TRUE(fits(schema, R"({"name":"abc","tags":["a"]})"));
  EXPECT_TRUE(fits(
      schema, R"({"name": "\u00e9é\"", "age": -12, "tags": ["b", "a"], "at": [1.5e3, null]})"));
  EXPECT_FALSE(fits(schema, R"({"name": "abcd", "tags": ["a"]})"));
  EXPECT_FALSE(fits(schema, R"({"name": "a", "tags": []})"));
  EXPECT_FALSE(fits(schema, R"({"name": "a"})"));
  EXPECT_FALSE(fits(schema, R"({"tags": ["a"], "name": "a"})"));
  EXPECT_FALSE(fits(schema, R"({"name": "a", "age": 012, "tags": ["a"]})"));
  EXPECT_FALSE(fits(schema, R"({"name": "a", "tags": ["a"],})"));
}

TEST(JsonSchemaTest, AnyPropertyMayBeTheFirst) {
  const char* const schema = R"({"properties": {"a": {"type": "null"}, "b": {"const": 1},
                                                "c": {"type": "boolean"}}})";
  EXPECT_TRUE(fits(schema, R"({"a": null, "c": true})"));
  EXPECT_TRUE(fits(schema, R"({"b": 1})"));
  EXPECT_TRUE(fits(schema, R"({"c": false})"));
  EXPECT_FALSE(fits(schema, R"({"c": false, "b": 1})"));
}

TEST(JsonSchemaTest, CountsItems) {
  const char* const schema = R"({"type": "array", "items": {"type": "integer"}, "minItems": 2,
                                 "maxItems": 3})";
  EXPECT_FALSE(fits(schema, "[1]"));
  EXPECT_TRUE(fits(schema, "[1, 2]"));
  EXPECT_TRUE(fits(schema, "[1,2,3]"));
  EXPECT_FALSE(fits(schema, "[1,2,3,4]"));
  EXPECT_TRUE(fits(R"({"type": "array", "maxItems": 0})", "[]"));
  EXPECT_TRUE(fits(R"({"type": ["string", "null"], "pattern": "a+"})", "\"aa\""));
  EXPECT_TRUE(fits(R"({"anyOf": [{"type": "null"}, {"type": "object"}]})", R"({"x": [1, {}]})"));
}

TEST(JsonSchemaTest, TakesAnyObject) {
  EXPECT_TRUE(matches(any_json_object(), R"({"a": [1, {"b": "c\n"}], "d": null})"));
  EXPECT_FALSE(matches(any_json_object(), "[1]"));
  EXPECT_FALSE(matches(any_json_object(), R"({"a": [[[[[1]]]]]})"));
}

TEST(JsonSchemaTest, NamesWhatIsNotSupported) {
  const auto problem = [](const char* schema) {
    return message_of<ConfigError>([&] { pattern_of_schema(jinja::value_of_json(schema)); });
  };
  EXPECT_THAT(problem(R"({"type": "integer", "minimum": 5})"),
              HasSubstr("minimum is not supported"));
  EXPECT_THAT(problem(R"({"type": "date"})"), HasSubstr("type date is not known"));
  EXPECT_THAT(problem(R"({"$ref": "#/x"})"), HasSubstr("$ref #/x leads nowhere"));
  EXPECT_THAT(problem(R"({"$ref": "#"})"), HasSubstr("$ref contains itself"));
  EXPECT_THAT(problem(R"({"type": "array", "minItems": -1})"), HasSubstr("minItems must be"));
  EXPECT_THAT(problem("false"), HasSubstr("allows nothing"));
  EXPECT_THAT(problem("5"), HasSubstr("a schema must be an object"));
}

}  // namespace
}  // namespace megatron::serve
