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
constexpr const char* kToolUse = "tool_use";

struct BuiltInTemplate {
  std::string_view name;
  std::string_view source;
  std::string_view stop;
};

// The tokenizer puts the first <s> of llama2 before the text.
constexpr std::array kBuiltIn = {
    BuiltInTemplate{
        "chatml",
        "{% for message in messages %}"
        "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "<|im_end|>"},
    BuiltInTemplate{"llama3",
                    "{% for message in messages %}"
                    "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ "
                    "message.content ~ '<|eot_id|>' }}"
                    "{% endfor %}"
                    "{% if add_generation_prompt %}"
                    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
                    "<|eot_id|>"},
    BuiltInTemplate{"zephyr",
                    "{% for message in messages %}"
                    "{{ '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '</s>\\n' }}"
                    "{% endfor %}"
                    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
                    "</s>"},
    BuiltInTemplate{"llama2",
                    "{% set ns = namespace(system='', begin='') %}"
                    "{% for message in messages %}"
                    "{% if message.role == 'system' %}"
                    "{% set ns.system = '<<SYS>>\\n' ~ message.content ~ '\\n<</SYS>>\\n\\n' %}"
                    "{% elif message.role == 'user' %}"
                    "{{ ns.begin ~ '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' }}"
                    "{% set ns.system = '' %}{% set ns.begin = '<s>' %}"
                    "{% else %}{{ ' ' ~ message.content ~ ' </s>' }}{% endif %}"
                    "{% endfor %}",
                    "</s>"},
    BuiltInTemplate{"plain",
                    "{% for message in messages %}"
                    "{{ message.role ~ ': ' ~ message.content ~ '\\n' }}{% endfor %}"
                    "{% if add_generation_prompt %}assistant:{% endif %}",
                    "\nuser:"},
};

constexpr std::string_view kCheckOfRoles =
    "{% for message in messages if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role ' ~ message.role ~ ' is not known; use system, user or assistant') }}"
    "{% endfor %}";

// Written at the end of a message by published templates, whose models' files name them as the end
// of a text or not.
constexpr std::array<std::string_view, 6> kEndsOfMessages = {
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|eot|>"};

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
NamedTemplates written_templates(const fs::path& folder) {
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
  return named;
}

jinja::Template parsed(const std::string& file, std::string_view source) {
  try {
    return jinja::Template(file, source);
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("{}; choose one of {} with --chat-template", error.what(),
                                  fmt::join(known_chat_templates(), ", ")));
  }
}

constexpr std::array<std::pair<const char*, SpecialToken>, 6> kSpecialTokens = {
    {{"bos_token", SpecialToken::kBos},
     {"eos_token", SpecialToken::kEos},
     {"pad_token", SpecialToken::kPad},
     {"cls_token", SpecialToken::kCls},
     {"sep_token", SpecialToken::kSep},
     {"mask_token", SpecialToken::kMask}}};

void add_tokenizer_tokens(const Tokenizer& tokenizer, jinja::Mapping& tokens) {
  for (const auto& [name, token] : kSpecialTokens) {
    const auto id = tokenizer.special_id(token);
    if (id) tokens.set(name, jinja::Value(tokenizer.piece(*id)));
  }
}

// The tokens that the files of a folder name: a text, an object with the text, or null for none.
void add_written_tokens(const fs::path& file, jinja::Mapping& tokens) {
  if (!fs::exists(file)) return;
  const nlohmann::json config = read_json(file);
  if (!config.is_object()) return;
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token") || name.starts_with("add_")) continue;
    const nlohmann::json content =
        value.is_object() ? value.value("content", nlohmann::json()) : value;
    if (content.is_null()) {
      tokens.set(name, jinja::Value::undefined("the model has no " + name));
    } else if (content.is_string()) {
      tokens.set(name, jinja::Value(content.get<std::string>()));
    }
  }
}

}  // namespace

std::vector<std::string> known_chat_templates() {
  std::vector<std::string> names;
  for (const BuiltInTemplate& one : kBuiltIn) names.emplace_back(one.name);
  return names;
}

ChatTemplate::ChatTemplate(std::string name, std::string_view file, std::string_view source)
    : name_(std::move(name)),
      template_(parsed(std::string(file), source)),
      has_developer_role_(source.find("developer") != std::string_view::npos),
      tool_calls_(tool_call_format_of_template(source)) {
  for (const std::string_view end : kEndsOfMessages) {
    if (source.find(end) != std::string_view::npos) stops_.emplace_back(end);
  }
}

ChatTemplate ChatTemplate::built_in(std::string_view name) {
  const auto place = std::find_if(kBuiltIn.begin(), kBuiltIn.end(),
                                  [&](const BuiltInTemplate& one) { return one.name == name; });
  if (place == kBuiltIn.end()) {
    throw ConfigError(fmt::format("--chat-template {} is not known; use one of {}", name,
                                  fmt::join(known_chat_templates(), ", ")));
  }
  ChatTemplate result(std::string(name), name,
                      std::string(kCheckOfRoles) + std::string(place->source));
  result.stops_ = {std::string(place->stop)};
  result.writes_special_tokens_ = false;
  return result;
}

ChatTemplate ChatTemplate::of_file(const fs::path& file, const Tokenizer& tokenizer) {
  ChatTemplate result(file.filename().string(), file.string(), read_text(file));
  add_tokenizer_tokens(tokenizer, result.special_tokens_);
  return result;
}

std::optional<ChatTemplate> ChatTemplate::of_folder(const fs::path& folder,
                                                    const Tokenizer& tokenizer) {
  const NamedTemplates named = written_templates(folder);
  if (named.empty()) return std::nullopt;
  const auto found = named.find(kDefault);
  if (found == named.end()) {
    std::vector<std::string> names;
    for (const auto& [name, written] : named) names.push_back(name);
    throw ConfigError(
        fmt::format("{}: has the chat_template {} and none named {}; choose one of {} "
                    "with --chat-template",
                    folder.string(), fmt::join(names, ", "), kDefault,
                    fmt::join(known_chat_templates(), ", ")));
  }
  const WrittenTemplate& written = found->second;
  ChatTemplate result(written.file.filename().string(), written.file.string(), written.text);
  if (const auto tools = named.find(kToolUse); tools != named.end()) {
    result.with_tools_ = parsed(tools->second.file.string(), tools->second.text);
    result.tool_calls_ = tool_call_format_of_template(tools->second.text);
  }
  add_tokenizer_tokens(tokenizer, result.special_tokens_);
  add_written_tokens(folder / "special_tokens_map.json", result.special_tokens_);
  add_written_tokens(folder / "tokenizer_config.json", result.special_tokens_);
  if (auto end = result.special_token("eos_token")) result.stops_.push_back(std::move(*end));
  return result;
}

std::optional<std::string> ChatTemplate::special_token(std::string_view name) const {
  const jinja::Value* value = special_tokens_.find(name);
  const bool is_text = value != nullptr && value->text() != nullptr && !value->text()->empty();
  return is_text ? std::optional(*value->text()) : std::nullopt;
}

std::string ChatTemplate::prompt(jinja::Mapping variables) const {
  const jinja::Value* tools = variables.find("tools");
  const bool has_tools = tools != nullptr && jinja::is_true(*tools);
  for (const auto& [name, value] : special_tokens_.entries) {
    if (variables.find(name) == nullptr) variables.set(name, value);
  }
  const jinja::Value all = jinja::Value::mapping(std::move(variables));
  return (has_tools && with_tools_ ? *with_tools_ : template_).render(all);
}

}  // namespace megatron::serve
