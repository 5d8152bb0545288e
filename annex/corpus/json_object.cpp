#include "annex/corpus/json_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/json.h"

namespace megatron::corpus {

std::string json_text(const std::string& text) { return nlohmann::json(text).dump(); }

// Writes each member's value while the parser meets its parts, with Python's separators.
class JsonObject::Reader {
 public:
  Reader(JsonObject& object, std::string_view line) : object_(object), line_(line) {}

  const std::string& problem() const { return problem_; }

  bool null() { return value("null"); }
  bool boolean(bool is_true) { return value(is_true ? "true" : "false"); }
  bool number_integer(int64_t number) { return value(fmt::to_string(number)); }
  bool number_unsigned(uint64_t number) { return value(fmt::to_string(number)); }
  bool number_float(double, const std::string& digits) { return value(digits); }
  bool binary(nlohmann::json::binary_t&) { return false; }

  bool string(std::string& text) {
    if (open_.size() == 1) text_ = text;
    return value(json_text(text));
  }

  bool key(std::string& name) {
    if (open_.size() == 1) {
      key_ = name;
    } else {
      separate();
      json_ += json_text(name) + ": ";
      is_behind_key_ = true;
    }
    return true;
  }

  bool start_object(size_t) { return open('{'); }
  bool start_array(size_t) { return open('['); }
  bool end_object() { return close('}'); }
  bool end_array() { return close(']'); }

  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) {
    problem_ = "syntax error: the line " + json_problem(line_, byte);
    return false;
  }

 private:
  bool value(std::string_view json) {
    if (open_.empty()) return refuse_other_values();
    separate();
    json_ += json;
    end_member();
    return true;
  }

  bool open(char bracket) {
    if (open_.empty() && bracket == '[') return refuse_other_values();
    if (!open_.empty()) {
      separate();
      json_ += bracket;
    }
    open_ += bracket;
    is_first_ = true;
    return true;
  }

  bool close(char bracket) {
    open_.pop_back();
    if (open_.empty()) return true;
    json_ += bracket;
    is_first_ = false;
    end_member();
    return true;
  }

  bool refuse_other_values() {
    problem_ = "the line holds another value than a JSON object; write one object a line";
    return false;
  }

  // Writes the comma between the parts of a list or an inner object.
  void separate() {
    if (open_.size() > 1 && !is_first_ && !is_behind_key_) json_ += ", ";
    is_first_ = false;
    is_behind_key_ = false;
  }

  void end_member() {
    if (open_.size() != 1) return;
    object_.set({std::move(key_), std::move(json_), std::move(text_)});
    json_.clear();
    text_.reset();
  }

  JsonObject& object_;
  std::string_view line_;
  std::string open_;  // the brackets around this place
  std::string key_;   // of the member that is being read
  std::string json_;
  std::optional<std::string> text_;
  bool is_first_ = true;
  bool is_behind_key_ = false;
  std::string problem_;
};

std::optional<std::string> JsonObject::parse(std::string_view line) {
  members_.clear();
  if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) return "the line is blank";
  Reader reader(*this, line);
  if (nlohmann::json::sax_parse(line, &reader)) return std::nullopt;
  return reader.problem();
}

const JsonObject::Member* JsonObject::find(std::string_view key) const {
  const auto found = std::ranges::find(members_, key, &Member::key);
  return found == members_.end() ? nullptr : &*found;
}

const std::string* JsonObject::text(std::string_view key) const {
  const Member* const member = find(key);
  return member != nullptr && member->text ? &*member->text : nullptr;
}

const std::string* JsonObject::json(std::string_view key) const {
  const Member* const member = find(key);
  return member != nullptr ? &member->json : nullptr;
}

void JsonObject::set(Member member) {
  const auto known = std::ranges::find(members_, member.key, &Member::key);
  if (known == members_.end()) {
    members_.push_back(std::move(member));
  } else {
    *known = std::move(member);
  }
}

void JsonObject::set_text(std::string_view key, std::string text) {
  std::string json = json_text(text);
  set({std::string(key), std::move(json), std::move(text)});
}

void JsonObject::set_json(std::string_view key, std::string json) {
  set({std::string(key), std::move(json), std::nullopt});
}

std::string JsonObject::line() const {
  std::string out = "{";
  for (const Member& member : members_) {
    if (out.size() > 1) out += ", ";
    out += json_text(member.key) + ": " + member.json;
  }
  return out + "}";
}

}  // namespace megatron::corpus
