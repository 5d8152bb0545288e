#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

// The JSON object of a line, for tools that read or change some members and copy the others. Values
// keep their meaning and numbers their digits. Of equal keys the last one counts, as in Python.
class JsonObject {
 public:
  // Replaces the content. Returns the problem of the line, or nothing. Only strict JSON in UTF-8 is
  // right: no NaN, no Infinity, no escaped half of a surrogate pair.
  std::optional<std::string> parse(std::string_view line);

  // The value of a member that is a text; null if there is none.
  const std::string* text(std::string_view key) const;
  // The value as JSON; null if there is no such member.
  const std::string* json(std::string_view key) const;
  // Changes a member, or adds it at the end.
  void set_text(std::string_view key, std::string text);
  // The same for any value. REQUIRES: json is valid JSON of one line.
  void set_json(std::string_view key, std::string json);

  // The line without its end: as Python's json.dumps(object, ensure_ascii=False) writes it.
  std::string line() const;

 private:
  struct Member {
    std::string key;
    std::string json;
    std::optional<std::string> text;
  };
  class Reader;

  const Member* find(std::string_view key) const;
  void set(Member member);

  std::vector<Member> members_;
};

// A text as JSON writes it, in quotes, with non-ASCII characters as they are.
// REQUIRES: text is valid UTF-8.
std::string json_text(const std::string& text);

}  // namespace megatron::corpus
