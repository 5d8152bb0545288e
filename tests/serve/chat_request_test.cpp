#include "megatron/serve/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/serve/openai_request.h"
#include "tests/serve/running_server.h"
#include "tests/support/temporary_directory.h"

namespace megatron::serve {
namespace {

using testing::HasSubstr;

TEST(ChatRequestTest, GivesTheTemplateAllVariables) {
  const TemporaryDirectory folder;
  const auto tokenizer = tiny_tokenizer();
  const auto written = [&](const std::string& source, const std::string& body) {
    folder.write("t.jinja", source);
    return chat_prompt(ChatTemplate::of_file(folder.path() / "t.jinja", *tokenizer), body);
  };
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}])";
  const std::string chat = R"("messages": [{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(written("{{ tools|tojson }}|{{ documents }}|{{ add_generation_prompt }}|{{ x }}",
                    "{" + chat + ", " + tools + R"(, "chat_template_kwargs": {"x": [1]}})"),
            R"([{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}]|None|True|[1])");
  EXPECT_EQ(written("{{ tools }}", "{" + chat + ", " + tools + R"(, "tool_choice": "none"})"),
            "None");
  EXPECT_EQ(
      written("{{ messages }}", R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "name": null, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": "{\"z\": 1, \"y\": [2]}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "c"}]})"),
      "[{'role': 'system', 'content': 'ab'}, {'role': 'assistant', 'content': '', 'tool_calls': "
      "[{'id': '1', 'function': {'name': 'f', 'arguments': {'z': 1, 'y': [2]}}}]}, "
      "{'role': 'tool', 'tool_call_id': '1', 'content': 'c'}]");
  EXPECT_EQ(written("{# developer #}{{ messages[0].role }}",
                    R"({"messages": [{"role": "developer", "content": "a"}]})"),
            "developer");
  EXPECT_EQ(written("<{{ messages[0].content }}>{% if add_generation_prompt %}A:{% endif %}",
                    "{" + chat + R"(, "continue_final_message": true})"),
            "<Hi");
}

TEST(ChatRequestTest, NamesTheWrongField) {
  const auto refused = [](const std::string& body) {
    try {
      chat_prompt(ChatTemplate::built_in("plain"), body);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      return error.param + ": " + error.what();
    }
    return std::string("taken");
  };
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi"}], )";
  EXPECT_EQ(refused(chat + R"("x": 1})"), "taken");
  EXPECT_THAT(refused(chat + R"("tools": [{"type": "function"}]})"),
              HasSubstr("tools: tools must be objects of type function"));
  EXPECT_THAT(refused(chat + R"("chat_template_kwargs": 5})"), HasSubstr("must be an object"));
  EXPECT_THAT(refused(chat + R"("add_generation_prompt": true, "continue_final_message": true})"),
              HasSubstr("needs add_generation_prompt to be false"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user"}]})"), HasSubstr("with role and content"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
              HasSubstr("this model reads text"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "tool_calls": [
                          {"function": {"name": "f", "arguments": "{"}}]}]})"),
              HasSubstr("whose arguments are not valid JSON"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})"),
              HasSubstr("no objects with a function"));
}

}  // namespace
}  // namespace megatron::serve
