#include "megatron/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/support/message_of.h"
#include "tests/support/source_path.h"

namespace megatron::jinja {
namespace {

using testing::HasSubstr;

std::string rendered(const std::string& source, const std::string& variables = "{}",
                     const RenderLimits& limits = {}) {
  return Template("t", source).render(value_of_json(variables), limits);
}

std::string problem(const std::string& source, const std::string& variables = "{}",
                    const RenderLimits& limits = {}) {
  return message_of<TemplateError>([&] { rendered(source, variables, limits); });
}

const std::string& text_at(const Value& line, std::string_view key) {
  return *line.mapping()->find(key)->text();
}

// tests/golden/jinja/README.md says what the lines are.
TEST(TemplateTest, RendersAsPythonsJinja) {
  std::ifstream file(source_path("tests/golden/jinja/cases.jsonl"));
  std::map<std::string, std::string> templates;
  std::map<std::string, Value> conversations;
  int64_t num_rendered = 0;
  for (std::string text; std::getline(file, text);) {
    const Value line = value_of_json(text);
    const Mapping& fields = *line.mapping();
    if (fields.find("source") != nullptr) {
      templates[text_at(line, "template")] = text_at(line, "source");
    } else if (fields.find("variables") != nullptr) {
      conversations[text_at(line, "conversation")] = *fields.find("variables");
    } else {
      const std::string& name = text_at(line, "template");
      const std::string& conversation = text_at(line, "conversation");
      SCOPED_TRACE(name + " " + conversation);
      const Template one(name, templates.at(name));
      const RenderLimits limits = {.now = 1767225600};  // 2026-01-01, noon in no time zone
      ++num_rendered;
      if (fields.find("text") != nullptr) {
        try {
          EXPECT_EQ(one.render(conversations.at(conversation), limits), text_at(line, "text"));
        } catch (const TemplateError& error) {
          ADD_FAILURE() << error.what();
        }
      } else if (fields.find("raises") != nullptr) {
        EXPECT_EQ(message_of<RaisedByTemplate>(
                      [&] { one.render(conversations.at(conversation), limits); }),
                  text_at(line, "raises"));
      } else {
        EXPECT_THROW(one.render(conversations.at(conversation), limits), TemplateError);
      }
    }
  }
  EXPECT_GT(templates.size(), 40u);
  EXPECT_GT(num_rendered, 400);
}

TEST(TemplateTest, NamesThePlaceOfAnError) {
  EXPECT_EQ(problem("a\n{{ x.y.z }}", R"({"x": {}})"),
            "t: line 2: 'dict object' has no attribute 'y'");
  EXPECT_EQ(problem("{{ x.y }}"), "t: line 1: 'x' is undefined");
  EXPECT_EQ(problem("{% if\n 1 < 'a' %}{% endif %}"),
            "t: line 2: '<' not supported between instances of 'int' and 'str'");
  EXPECT_EQ(problem("{{ 1 + 'a' }}"),
            "t: line 1: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(message_of<RaisedByTemplate>([] { rendered("\n{{ raise_exception('no') }}"); }), "no");
}

TEST(TemplateTest, NamesAnUnknownConstruct) {
  EXPECT_THAT(problem("\n{% include 'x' %}"),
              HasSubstr("t: line 2: the tag include is not supported; use if, for"));
  EXPECT_THAT(problem("{{ x | shuffle }}"), HasSubstr("line 1: the filter shuffle is not"));
  EXPECT_THAT(problem("{{ x is odder }}"), HasSubstr("line 1: the test odder is not supported"));
  EXPECT_THAT(problem("{% for x in y recursive %}{% endfor %}"),
              HasSubstr("recursive loops are not supported"));
  EXPECT_THAT(problem("{{ f(*x) }}"), HasSubstr("arguments with * or ** are not supported"));
  EXPECT_THAT(problem(R"({{ '\N{BULLET}' }})"), HasSubstr("is not supported; write \\u"));
}

TEST(TemplateTest, RefusesBrokenSyntax) {
  EXPECT_THAT(problem("{% if x %}\n"), HasSubstr("line 1: this tag does not end; add {% endif %}"));
  EXPECT_THAT(problem("{{ x"), HasSubstr("line 1: {{ does not end; add }}"));
  EXPECT_THAT(problem("{{ 'x }}"), HasSubstr("line 1: a string does not end"));
  EXPECT_THAT(problem("{# x"), HasSubstr("the comment does not end"));
  EXPECT_THAT(problem("{% raw %}"), HasSubstr("raw does not end"));
  EXPECT_THAT(problem("{{ (1] }}"), HasSubstr("] stands where ) is due"));
  EXPECT_THAT(problem("{{ 1 2 }}"), HasSubstr("2 stands where }} is due"));
  EXPECT_THAT(problem("{% endif %}"), HasSubstr("the tag endif is not supported"));
  EXPECT_THAT(problem("{% break %}"), HasSubstr("break is outside of a loop"));
  EXPECT_THAT(problem("{{ 99999999999999999999 }}"), HasSubstr("is not an integer of 64 bits"));
}

TEST(TemplateTest, LimitsWorkAndMemory) {
  EXPECT_THAT(problem("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}"
                      "{% endfor %}",
                      "{}", {.max_steps = 10000}),
              HasSubstr("more than 10000 steps"));
  EXPECT_THAT(problem("{{ 'x' * 1000000000000 }}"), HasSubstr("is larger than"));
  EXPECT_THAT(problem("{{ 'x'.center(1000000000000) }}"), HasSubstr("is larger than"));
  EXPECT_THAT(problem("{{ '%1000000000000d' % 1 }}"), HasSubstr("is larger than"));
  EXPECT_THAT(problem("{{ range(100001) }}"), HasSubstr("range of more than 100000"));
  EXPECT_THAT(problem("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("call each other too deeply"));
  EXPECT_THAT(problem("{{ " + std::string(100000, '(') + std::string(100000, ')') + "}}"),
              HasSubstr("is nested too deeply"));
  EXPECT_THAT(problem("{{ 1" + std::string(100000, '-') + "1 }}"), HasSubstr("nested too deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 10000; ++i) sum += "+1";
  EXPECT_THAT(problem(sum + "}}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(problem("{% set n = namespace(x=[]) %}{% for i in range(200) %}"
                      "{% set n.x = [n.x] %}{% endfor %}"),
              HasSubstr("nested deeper than 100 levels"));
  EXPECT_THAT(problem("{{ x }}", R"({"x": "0123456789"})", {.max_bytes = 9}),
              HasSubstr("the output is longer than 9 bytes"));
}

// A loop or macro refers to a scope that may end before the namespace does.
TEST(TemplateTest, KeepsObjectsOutOfNamespaces) {
  EXPECT_THAT(problem("{% macro m() %}{% endmacro %}{% set n = namespace(m=m) %}"),
              HasSubstr("a macro cannot be an element"));
  EXPECT_THAT(problem("{% set n = namespace() %}{% set n.n = n %}"),
              HasSubstr("a namespace cannot be an element"));
  EXPECT_THAT(problem("{% for x in [1] %}{{ [loop] }}{% endfor %}"),
              HasSubstr("a loop cannot be an element"));
}

TEST(TemplateTest, RefusesChangesOfValues) {
  EXPECT_THAT(problem("{{ x.append(1) }}", R"({"x": []})"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_EQ(rendered("{{ x.update is defined }}", R"({"x": {"update": 1}})"), "False");
}

TEST(TemplateTest, ReadsJson) {
  const std::string text = R"({"z": 1, "a": [true, null, 1.5, "é\n"], "m": {}})";
  EXPECT_EQ(json_of_value(value_of_json(text)), text);
  EXPECT_EQ(json_of_value(value_of_json(R"({"a": 1, "b": 2, "a": 3})")), R"({"a": 3, "b": 2})");
  EXPECT_THAT(message_of<FormatError>([] { value_of_json("{"); }),
              HasSubstr("the text is not valid JSON at byte"));
  EXPECT_THAT(message_of<FormatError>([] { value_of_json(std::string(65, '[')); }),
              HasSubstr("nested deeper than 64 levels"));
}

}  // namespace
}  // namespace megatron::jinja
