#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::serve {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string text;
};

// "plain", "chatml", "llama2", "llama3", "zephyr": the templates that chat_prompt() supports.
std::vector<std::string> known_chat_templates();

// The template of a tokenizer's folder, recognized by the role markers in the text of Hugging
// Face's template; nothing if the folder has none. Searches the places where transformers writes
// it: chat_template.jinja; as "default" in the list chat_template of tokenizer_config.json or in
// additional_chat_templates/; as the text chat_template of tokenizer_config.json. Throws
// ConfigError, naming the file and the known templates, for a text with other markers, and for
// named templates without a default.
std::optional<std::string> chat_template_of(const std::filesystem::path& folder);

// The prompt for the assistant's next message. `name` is a supported template. Throws ConfigError
// for an unknown role.
std::string chat_prompt(std::string_view name, const std::vector<ChatMessage>& messages);
// Stop strings of the assistant's message.
std::vector<std::string> chat_stops(std::string_view name);

}  // namespace megatron::serve
