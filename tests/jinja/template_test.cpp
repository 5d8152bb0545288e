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
  EXPECT_EQ(problem("a\n{{ x.y.z }}"), "t: line 2: 'dict object' has no attribute 'y'");
}

}  // namespace
}  // namespace megatron::jinja
