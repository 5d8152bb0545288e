#include "megatron/serve/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::serve {
namespace {

const std::vector<ChatMessage> kMessages = {
    {"system", "S"}, {"user", "A"}, {"assistant", "B"}, {"user", "C"}};

TEST(ChatTemplateTest, WritesMessages) {
  EXPECT_EQ(chat_prompt("plain", kMessages),
            "system: S\nuser: A\nassistant: B\nuser: C\nassistant:");
  EXPECT_EQ(chat_prompt("chatml", kMessages),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
            "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(chat_prompt("llama2", kMessages),
            "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]");
  EXPECT_EQ(chat_prompt("llama3", {{"user", "A"}}),
            "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(chat_prompt("zephyr", {{"user", "A"}}), "<|user|>\nA</s>\n<|assistant|>\n");
  EXPECT_THAT(message_of<ConfigError>([] {
                chat_prompt("plain", {{"wizard", "A"}});
              }),
              testing::HasSubstr("role wizard is not known"));
  EXPECT_THAT(message_of<ConfigError>([] { chat_prompt("other", {}); }),
              testing::HasSubstr("use one of chatml, llama3, zephyr, llama2, plain"));
}

TEST(ChatTemplateTest, IsRecognizedInAFolder) {
  const TemporaryDirectory folder;
  const auto recognized = [&](const std::string& text) {
    std::ofstream(folder.path() / "tokenizer_config.json") << text;
    return chat_template_of(folder.path());
  };
  EXPECT_EQ(chat_template_of(folder.path()), std::nullopt);
  EXPECT_EQ(recognized("{}"), std::nullopt);
  EXPECT_EQ(recognized(R"({"chat_template": "{{'<|im_start|>' + m.role}}"})"), "chatml");
  EXPECT_EQ(recognized(R"({"chat_template": "{{'[INST]'}}"})"), "llama2");
  EXPECT_THAT(
      message_of<ConfigError>([&] { recognized(R"({"chat_template": "<start_of_turn>"})"); }),
      testing::HasSubstr("choose one of"));
  EXPECT_EQ(recognized(R"({"chat_template": "<|user|> <|assistant|> </s>"})"), "zephyr");
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { recognized(R"({"chat_template": "<|user|> <|end|> <|assistant|>"})"); }),
              testing::HasSubstr("choose one of"));
}

TEST(ChatTemplateTest, IsFoundWhereverItIsWritten) {
  const TemporaryDirectory folder;
  const auto config = [&](const std::string& chat_template) {
    folder.write("tokenizer_config.json", "{\"chat_template\": " + chat_template + "}");
  };
  config(R"([{"name": "default", "template": "<|im_start|>"}, {"name": "rag", "template": "x"}])");
  EXPECT_EQ(chat_template_of(folder.path()), "chatml");
  config(R"([{"name": "tool_use", "template": "<|im_start|>"}])");
  EXPECT_THAT(message_of<ConfigError>([&] { chat_template_of(folder.path()); }),
              testing::HasSubstr("has the chat_template tool_use and none named default; choose"));
  config(R"([{"name": "default"}])");
  EXPECT_THAT(message_of<FormatError>([&] { chat_template_of(folder.path()); }),
              testing::HasSubstr("neither a text nor a list"));

  config(R"("<|im_start|>")");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.write("additional_chat_templates/rag.jinja", "something else");
  EXPECT_EQ(chat_template_of(folder.path()), "chatml");
  folder.write("additional_chat_templates/default.jinja", "[INST]");
  EXPECT_EQ(chat_template_of(folder.path()), "llama2");
  folder.write("chat_template.jinja", "<|start_header_id|>");
  EXPECT_EQ(chat_template_of(folder.path()), "llama3");
  folder.write("chat_template.jinja", "{{ messages }}");
  EXPECT_THAT(message_of<ConfigError>([&] { chat_template_of(folder.path()); }),
              testing::HasSubstr("chat_template.jinja: its chat_template is not supported"));
}

}  // namespace
}  // namespace megatron::serve
