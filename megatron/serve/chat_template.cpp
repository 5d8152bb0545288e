#include "megatron/serve/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/json_file.h"

namespace megatron::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefault = "default";  // the name of the template without one

// A template: the format of a message by role, the beginning of the response, and its stop strings.
struct Template {
  std::string_view name;
  std::string_view mark;      // in the templates of Hugging Face that write messages so
  std::string_view not_with;  // in templates with that mark that write messages in another way
  std::string_view message;   // {0}: role, {1}: text
  std::string_view answer;
  std::string_view stop;
};

// llama2 joins the system's message to the first one of the user and has an own function.
constexpr std::array kTemplates = {
    Template{"chatml", "<|im_start|>", "", "<|im_start|>{0}\n{1}<|im_end|>\n",
             "<|im_start|>assistant\n", "<|im_end|>"},
    Template{"llama3", "<|start_header_id|>", "",
             "<|start_header_id|>{0}<|end_header_id|>\n\n{1}<|eot_id|>",
             "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    Template{"zephyr", "<|assistant|>", "<|end|>", "<|{0}|>\n{1}</s>\n", "<|assistant|>\n", "</s>"},
    Template{"llama2", "[INST]", "", "", "", "</s>"},
    Template{"plain", "", "", "{0}: {1}\n", "assistant:", "\nuser:"},
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

// The text of a template, and its location.
struct WrittenTemplate {
  fs::path file;
  std::string text;
};

// The names of a folder's named templates, with their texts.
using NamedTemplates = std::map<std::string, WrittenTemplate>;

void add_from_config(const fs::path& file, NamedTemplates& named) {
  if (!fs::exists(file)) return;
  const nlohmann::json config = read_json(file);
  const auto place = config.find("chat_template");
  if (place == config.end() || place->is_null()) return;
  if (place->is_string()) {
    named[kDefault] = {file, place->get<std::string>()};
    return;
  }
  const auto is_named = [](const nlohmann::json& one) {
    return one.is_object() && one.contains("name") && one["name"].is_string() &&
           one.contains("template") && one["template"].is_string();
  };
  if (!place->is_array() || !std::all_of(place->begin(), place->end(), is_named)) {
    throw FormatError(
        fmt::format("{}: chat_template is neither a text nor a list of objects with "
                    "name and template; copy the file again",
                    file.string()));
  }
  for (const nlohmann::json& one : *place) {
    named[one["name"].get<std::string>()] = {file, one["template"].get<std::string>()};
  }
}

// Compat: as in transformers 5, a template file takes precedence over tokenizer_config.json.
std::optional<WrittenTemplate> written_template(const fs::path& folder) {
  NamedTemplates named;
  add_from_config(folder / "tokenizer_config.json", named);
  const fs::path more = folder / "additional_chat_templates";
  if (fs::is_directory(more)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      named[entry.path().stem().string()] = {entry.path(), read_text(entry.path())};
    }
  }
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file)) named[kDefault] = {file, read_text(file)};
  if (named.empty()) return std::nullopt;
  const auto found = named.find(kDefault);
  if (found != named.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, written] : named) names.push_back(name);
  throw ConfigError(fmt::format(
      "{}: has the chat_template {} and none named {}; choose one of {} "
      "with --chat-template",
      folder.string(), fmt::join(names, ", "), kDefault, fmt::join(known_chat_templates(), ", ")));
}

bool is_written_so(const Template& one, std::string_view text) {
  const auto has = [&](std::string_view mark) { return text.find(mark) != std::string_view::npos; };
  return !one.mark.empty() && has(one.mark) && (one.not_with.empty() || !has(one.not_with));
}

}  // namespace

std::vector<std::string> known_chat_templates() {
  std::vector<std::string> names;
  for (const Template& one : kTemplates) names.emplace_back(one.name);
  return names;
}

std::optional<std::string> chat_template_of(const fs::path& folder) {
  const std::optional<WrittenTemplate> written = written_template(folder);
  if (!written) return std::nullopt;
  for (const Template& one : kTemplates) {
    if (is_written_so(one, written->text)) return std::string(one.name);
  }
  throw ConfigError(
      fmt::format("{}: its chat_template is not supported; "
                  "choose one of {} with --chat-template",
                  written->file.string(), fmt::join(known_chat_templates(), ", ")));
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
