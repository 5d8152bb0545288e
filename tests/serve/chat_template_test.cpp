#include "megatron/serve/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/serve/running_server.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A prompt for chats of {role, content}.
std::string prompt(const ChatTemplate& chat_template,
                   const std::vector<std::pair<std::string, std::string>>& messages,
                   jinja::Mapping variables = {}) {
  std::vector<jinja::Value> list;
  for (const auto& [role, content] : messages) {
    jinja::Mapping message;
    message.set("role", jinja::Value(role));
    message.set("content", jinja::Value(content));
    list.push_back(jinja::Value::mapping(std::move(message)));
  }
  variables.set("messages", jinja::Value::list(std::move(list)));
  variables.set("add_generation_prompt", jinja::Value(true));
  return chat_template.prompt(std::move(variables));
}

const std::vector<std::pair<std::string, std::string>> kMessages = {
    {"system", "S"}, {"user", "A"}, {"assistant", "B"}, {"user", "C"}};

TEST(ChatTemplateTest, WritesMessages) {
  EXPECT_EQ(prompt(ChatTemplate::built_in("plain"), kMessages),
            "system: S\nuser: A\nassistant: B\nuser: C\nassistant:");
  EXPECT_EQ(prompt(ChatTemplate::built_in("chatml"), kMessages),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
            "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(prompt(ChatTemplate::built_in("llama2"), kMessages),
            "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]");
  EXPECT_EQ(prompt(ChatTemplate::built_in("llama3"), {{"user", "A"}}),
            "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(prompt(ChatTemplate::built_in("zephyr"), {{"user", "A"}}),
            "<|user|>\nA</s>\n<|assistant|>\n");
  EXPECT_THAT(message_of<jinja::RaisedByTemplate>([] {
                prompt(ChatTemplate::built_in("plain"), {{"wizard", "A"}});
              }),
              HasSubstr("role wizard is not known"));
  EXPECT_THAT(message_of<ConfigError>([] { ChatTemplate::built_in("other"); }),
              HasSubstr("use one of chatml, llama3, zephyr, llama2, plain"));
}

TEST(ChatTemplateTest, IsFoundWhereverItIsWritten) {
  const auto tokenizer = tiny_tokenizer();
  const TemporaryDirectory folder;
  const auto config = [&](const std::string& chat_template) {
    folder.write("tokenizer_config.json", "{\"chat_template\": " + chat_template + "}");
  };
  const auto found = [&](jinja::Mapping variables = {}) {
    const auto one = ChatTemplate::of_folder(folder.path(), *tokenizer);
    return one ? prompt(*one, {{"user", "A"}}, std::move(variables)) : "";
  };
  EXPECT_EQ(found(), "");
  config("null");
  EXPECT_EQ(found(), "");
  config(R"("one {{ messages[0].role }}")");
  EXPECT_EQ(found(), "one user");
  config(R"([{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}])");
  EXPECT_EQ(found(), "two");
  jinja::Mapping with_tools;
  with_tools.set("tools", jinja::value_of_json("[{}]"));
  EXPECT_EQ(found(with_tools), "tools");
  config(R"([{"name": "tool_use", "template": "x"}])");
  EXPECT_THAT(message_of<ConfigError>(found),
              HasSubstr("has the chat_template tool_use and none named default; choose"));
  config(R"([{"name": "default"}])");
  EXPECT_THAT(message_of<FormatError>(found), HasSubstr("neither a text nor a list"));

  config(R"("three")");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.write("additional_chat_templates/rag.jinja", "something else");
  EXPECT_EQ(found(), "three");
  folder.write("additional_chat_templates/default.jinja", "four");
  EXPECT_EQ(found(), "four");
  folder.write("chat_template.jinja", "five");
  EXPECT_EQ(found(), "five");
  folder.write("chat_template.jinja", "\n{% include 'six' %}");
  EXPECT_THAT(message_of<ConfigError>(found),
              testing::AllOf(HasSubstr("chat_template.jinja: line 2: the tag include is not"),
                             HasSubstr("choose one of chatml")));
}

TEST(ChatTemplateTest, KnowsTheSpecialTokensOfTheFiles) {
  const auto tokenizer = tiny_tokenizer();
  const TemporaryDirectory folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ cls_token is defined }}",
                   "bos_token": {"content": "<b>"}, "add_bos_token": true, "cls_token": null})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<e>", "cls_token": "<c>"})");
  const auto one = ChatTemplate::of_folder(folder.path(), *tokenizer);
  ASSERT_TRUE(one);
  EXPECT_EQ(prompt(*one, {}), "<b>|<e>|False");
  EXPECT_THAT(one->stops(), ElementsAre("<e>"));
  EXPECT_TRUE(one->writes_special_tokens());
  folder.write("chat_template.jinja", "{{ '<|im_end|>' }}");
  EXPECT_THAT(ChatTemplate::of_folder(folder.path(), *tokenizer)->stops(),
              ElementsAre("<|im_end|>", "<e>"));
}

}  // namespace
}  // namespace megatron::serve
