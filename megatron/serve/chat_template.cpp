#include "megatron/serve/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/formats/json_file.h"

namespace megatron::serve {
namespace {

// How a template writes a message of a role, what begins the answer, and what ends it.
struct Template {
  std::string_view name;
  std::string_view mark;     // in the templates of Hugging Face that write messages so
  std::string_view message;  // {0}: role, {1}: text
  std::string_view answer;
  std::string_view stop;
};

// llama2 joins the system's message to the first one of the user and has an own function.
constexpr std::array kTemplates = {
    Template{"chatml", "<|im_start|>", "<|im_start|>{0}\n{1}<|im_end|>\n",
             "<|im_start|>assistant\n", "<|im_end|>"},
    Template{"llama3", "<|start_header_id|>",
             "<|start_header_id|>{0}<|end_header_id|>\n\n{1}<|eot_id|>",
             "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    Template{"zephyr", "<|assistant|>", "<|{0}|>\n{1}</s>\n", "<|assistant|>\n", "</s>"},
    Template{"llama2", "[INST]", "", "", "</s>"},
    Template{"plain", "", "{0}: {1}\n", "assistant:", "\nuser:"},
};

const Template& template_of(std::string_view name) {
  const auto place = std::find_if(kTemplates.begin(), kTemplates.end(),
                                  [&](const Template& one) { return one.name == name; });
  if (place != kTemplates.end()) return *place;
  throw ConfigError(fmt::format("--chat-template {} is not known; use one of {}", name,
                                fmt::join(known_chat_templates(), ", ")));
}

std::string llama2_prompt(const std::vector<ChatMessage>& messages) {
  std::string system;
  std::string text;
  bool is_first = true;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", message.text);
    } else if (message.role == "user") {
      // The tokenizer puts the first <s> before the text.
      text += fmt::format("{}[INST] {}{} [/INST]", is_first ? "" : "<s>", system, message.text);
      system.clear();
      is_first = false;
    } else {
      text += fmt::format(" {} </s>", message.text);
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> known_chat_templates() {
  std::vector<std::string> names;
  for (const Template& one : kTemplates) names.emplace_back(one.name);
  return names;
}

std::string chat_template_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(file)) return "plain";
  const nlohmann::json config = read_json(file);
  const auto place = config.find("chat_template");
  if (place == config.end() || !place->is_string()) return "plain";
  const auto text = place->get<std::string>();
  for (const Template& one : kTemplates) {
    if (!one.mark.empty() && text.find(one.mark) != std::string::npos) return std::string(one.name);
  }
  throw ConfigError(
      fmt::format("{}: its chat_template is none of those that this program knows; "
                  "choose one of {} with --chat-template",
                  file.string(), fmt::join(known_chat_templates(), ", ")));
}

std::string chat_prompt(std::string_view name, const std::vector<ChatMessage>& messages) {
  const Template& one = template_of(name);
  for (const ChatMessage& message : messages) {
    if (message.role == "system" || message.role == "user" || message.role == "assistant") continue;
    throw ConfigError(
        fmt::format("role {} is not known; use system, user or assistant", message.role));
  }
  if (one.name == "llama2") return llama2_prompt(messages);
  std::string text;
  for (const ChatMessage& message : messages) {
    text += fmt::format(fmt::runtime(one.message), message.role, message.text);
  }
  return text + std::string(one.answer);
}

std::vector<std::string> chat_stops(std::string_view name) {
  return {std::string(template_of(name).stop)};
}

}  // namespace megatron::serve
