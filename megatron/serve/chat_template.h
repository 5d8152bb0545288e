#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::serve {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string text;
};

// "plain", "chatml", "llama2", "llama3", "zephyr": the templates that chat_prompt() knows.
std::vector<std::string> known_chat_templates();

// The template of a Hugging Face folder, recognized by the marks of roles in chat_template of its
// tokenizer_config.json; "plain" if it has none. Throws ConfigError with the known ones for a
// template with other marks.
std::string chat_template_of(const std::filesystem::path& folder);

// The text that asks a model for the assistant's next message. `name` is a known template. Throws
// ConfigError for an unknown role.
std::string chat_prompt(std::string_view name, const std::vector<ChatMessage>& messages);
// Texts that end the assistant's message.
std::vector<std::string> chat_stops(std::string_view name);

}  // namespace megatron::serve
