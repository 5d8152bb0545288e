#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/jinja/template.h"
#include "megatron/serve/tool_calls.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::serve {

// Converts the messages of a chat to a prompt.
class ChatTemplate {
 public:
  // One of known_chat_templates(), with the roles system, user and assistant. The tokenizer adds
  // its special tokens to the prompt. Throws ConfigError for another name.
  static ChatTemplate built_in(std::string_view name);
  // A file. Special tokens are those of the tokenizer. Throws IoError, and ConfigError with the
  // line of what cannot be read and the remedy.
  static ChatTemplate of_file(const std::filesystem::path& file, const Tokenizer& tokenizer);
  // The template of a tokenizer's folder; nothing if the folder has none. Searches the places where
  // transformers writes it: chat_template.jinja; in the list chat_template of
  // tokenizer_config.json or in additional_chat_templates/; the text chat_template of
  // tokenizer_config.json. Of named templates, "tool_use" is for chats with tools and "default" for
  // all others. Special tokens are those of tokenizer_config.json and special_tokens_map.json.
  // Throws as of_file(), and ConfigError for named templates without a default.
  static std::optional<ChatTemplate> of_folder(const std::filesystem::path& folder,
                                               const Tokenizer& tokenizer);

  // "chatml", or the name of the file.
  const std::string& name() const { return name_; }
  // `variables` are those of transformers, besides the special tokens: messages, tools, documents,
  // add_generation_prompt, and any others. Throws jinja::TemplateError, and
  // jinja::RaisedByTemplate for chats that the template refuses.
  std::string prompt(jinja::Mapping variables) const;
  // Strings that end the assistant's message.
  const std::vector<std::string>& stops() const { return stops_; }
  // True if prompts have all special tokens, so that the tokenizer is not to add any.
  bool writes_special_tokens() const { return writes_special_tokens_; }
  // The format in which the template lets the model call tools.
  ToolCallFormat tool_calls() const { return tool_calls_; }
  bool has_developer_role() const { return has_developer_role_; }
  // The text of a special token: "bos_token"; nothing if the model has none.
  std::optional<std::string> special_token(std::string_view name) const;

 private:
  ChatTemplate(std::string name, std::string_view file, std::string_view source);

  std::string name_;
  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  jinja::Mapping special_tokens_;
  std::vector<std::string> stops_;
  bool writes_special_tokens_ = true;
  bool has_developer_role_ = false;
  ToolCallFormat tool_calls_ = ToolCallFormat::kNone;
};

// "plain", "chatml", "llama2", "llama3", "zephyr".
std::vector<std::string> known_chat_templates();

}  // namespace megatron::serve
