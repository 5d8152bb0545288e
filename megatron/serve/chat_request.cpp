#include "megatron/serve/chat_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/serve/openai_request.h"

namespace megatron::serve {
namespace {

using jinja::Mapping;
using jinja::Value;

[[noreturn]] void refuse_chat(const std::string& param, const std::string& problem) {
  throw ApiError(400, param + " " + problem, param);
}

// The value of a field; null counts as absent.
const Value* given(const Mapping& fields, std::string_view name) {
  const Value* value = fields.find(name);
  return value == nullptr || value->is_none() ? nullptr : value;
}

const std::string* given_text(const Mapping& fields, std::string_view name) {
  const Value* value = given(fields, name);
  return value == nullptr ? nullptr : value->text();
}

bool given_flag(const Mapping& fields, std::string_view name, bool fallback) {
  const Value* value = given(fields, name);
  if (value == nullptr) return fallback;
  const bool* flag = value->get_if<bool>();
  if (flag == nullptr) refuse_chat(std::string(name), "must be true or false");
  return *flag;
}

const std::vector<Value>& required_list(const Value& value, const std::string& name) {
  if (value.sequence() == nullptr) refuse_chat(name, "must be a list");
  return value.sequence()->items;
}

// The text of a message: a string, or a list of {"type": "text", "text": ...}.
std::string text_of_content(const Value& content) {
  if (content.text() != nullptr) return *content.text();
  if (content.sequence() == nullptr) refuse_chat("messages", "need a content that is text");
  std::string text;
  for (const Value& part : content.sequence()->items) {
    const Mapping* fields = part.mapping();
    const std::string* type = fields == nullptr ? nullptr : given_text(*fields, "type");
    const std::string* words = fields == nullptr ? nullptr : given_text(*fields, "text");
    if (type == nullptr || *type != "text" || words == nullptr) {
      refuse_chat("messages", "may have parts of type text only: this model reads text");
    }
    text += *words;
  }
  return text;
}

// A call of a tool, with the value of its arguments in place of their JSON text.
Value tool_call(const Value& call) {
  const Mapping* fields = call.mapping();
  const Value* function = fields == nullptr ? nullptr : given(*fields, "function");
  if (function == nullptr || function->mapping() == nullptr ||
      given_text(*function->mapping(), "name") == nullptr) {
    refuse_chat("messages", "have tool_calls that are no objects with a function and its name");
  }
  Mapping changed = *function->mapping();
  const std::string* arguments = given_text(changed, "arguments");
  try {
    const bool is_empty =
        given(changed, "arguments") == nullptr || (arguments != nullptr && arguments->empty());
    if (is_empty) {
      changed.set("arguments", Value::mapping({}));
    } else if (arguments != nullptr) {
      changed.set("arguments", jinja::value_of_json(*arguments));
    }
  } catch (const FormatError&) {
    refuse_chat("messages", "have tool_calls whose arguments are not valid JSON");
  }
  Mapping result = *fields;
  result.set("function", Value::mapping(std::move(changed)));
  return Value::mapping(std::move(result));
}

Value message_of(const Value& given_message, bool has_developer_role) {
  const Mapping* fields = given_message.mapping();
  const std::string* role = fields == nullptr ? nullptr : given_text(*fields, "role");
  if (role == nullptr) refuse_chat("messages", "must be objects with role and content");
  const Value* calls = given(*fields, "tool_calls");
  const Value* content = given(*fields, "content");
  if (content == nullptr && (calls == nullptr || *role != "assistant")) {
    refuse_chat("messages", "must be objects with role and content");
  }
  Mapping message;
  for (const auto& [key, value] : fields->entries) {
    const bool is_content = key.text() != nullptr && *key.text() == "content";
    if (is_content || !value.is_none()) message.set(key, value);
  }
  if (*role == "developer" && !has_developer_role) {
    message.set("role", Value(std::string("system")));
  }
  message.set("content", Value(content == nullptr ? std::string() : text_of_content(*content)));
  if (calls != nullptr) {
    std::vector<Value> changed;
    for (const Value& call : required_list(*calls, "messages")) changed.push_back(tool_call(call));
    message.set("tool_calls", Value::list(std::move(changed)));
  }
  return Value::mapping(std::move(message));
}

Value messages_of(const Mapping& request, bool has_developer_role) {
  const Value* list = given(request, "messages");
  const bool is_list = list != nullptr && list->sequence() != nullptr;
  if (!is_list || list->sequence()->items.empty()) {
    refuse_chat("messages", "must be a list of at least one message");
  }
  std::vector<Value> messages;
  for (const Value& one : list->sequence()->items) {
    messages.push_back(message_of(one, has_developer_role));
  }
  return Value::list(std::move(messages));
}

// The tools that a template describes; None without any.
Value tools_of(const Mapping& request) {
  const Value* tools = given(request, "tools");
  const Value* choice = given(request, "tool_choice");
  const std::string* word = choice == nullptr ? nullptr : choice->text();
  if (word != nullptr && *word == "none") return {};
  if (tools == nullptr) return {};
  for (const Value& tool : required_list(*tools, "tools")) {
    const Mapping* fields = tool.mapping();
    const std::string* type = fields == nullptr ? nullptr : given_text(*fields, "type");
    const Value* function = fields == nullptr ? nullptr : given(*fields, "function");
    const bool is_function = type != nullptr && *type == "function" && function != nullptr &&
                             function->mapping() != nullptr &&
                             given_text(*function->mapping(), "name") != nullptr;
    if (!is_function) {
      refuse_chat("tools", "must be objects of type function with a function and its name");
    }
  }
  return tools->sequence()->items.empty() ? Value() : *tools;
}

// Cuts what the template writes after the last message, which the model is to continue.
std::string cut_after(std::string prompt, const Value& messages) {
  const Mapping& last = *messages.sequence()->items.back().mapping();
  const std::string& whole = *last.find("content")->text();
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const auto begin = std::find_if_not(whole.begin(), whole.end(), is_space);
  const auto end = std::find_if_not(whole.rbegin(), std::make_reverse_iterator(begin), is_space);
  const std::string text(begin, end.base());
  const size_t place = prompt.rfind(text);
  if (place == std::string::npos) {
    refuse_chat("continue_final_message", "needs a template that writes the last message as it is");
  }
  const std::string with_space_after(begin, whole.end());
  const bool keeps_space = prompt.compare(place, with_space_after.size(), with_space_after) == 0;
  prompt.resize(place + (keeps_space ? with_space_after : text).size());
  return prompt;
}

}  // namespace

std::string chat_prompt(const ChatTemplate& chat_template, const std::string& body) {
  const Value value = jinja::value_of_json(body);
  const Mapping& request = *value.mapping();
  Mapping variables;
  if (const Value* more = given(request, "chat_template_kwargs")) {
    if (more->mapping() == nullptr) refuse_chat("chat_template_kwargs", "must be an object");
    variables = *more->mapping();
  }
  const Value messages = messages_of(request, chat_template.has_developer_role());
  variables.set("messages", messages);
  variables.set("tools", tools_of(request));
  for (const char* name : {"documents", "tool_choice", "reasoning_effort"}) {
    const Value* field = given(request, name);
    if (field != nullptr) variables.set(name, *field);
  }
  if (variables.find("documents") == nullptr) variables.set("documents", Value());
  const bool continues = given_flag(request, "continue_final_message", false);
  const bool begins = given_flag(request, "add_generation_prompt", !continues);
  if (continues && begins) {
    refuse_chat("continue_final_message", "needs add_generation_prompt to be false");
  }
  variables.set("add_generation_prompt", Value(begins));
  try {
    std::string prompt = chat_template.prompt(std::move(variables));
    return continues ? cut_after(std::move(prompt), messages) : prompt;
  } catch (const jinja::TemplateError& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

}  // namespace megatron::serve
