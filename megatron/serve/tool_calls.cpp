#include "megatron/serve/tool_calls.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kHermesBegin = "<tool_call>";
constexpr std::string_view kHermesEnd = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralCalls = "[TOOL_CALLS]";
constexpr std::string_view kMistralId = "[CALL_ID]";
constexpr std::string_view kMistralArguments = "[ARGS]";
constexpr std::string_view kDeepSeekCalls = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kDeepSeekCall = "<｜tool▁call▁begin｜>";
constexpr std::string_view kDeepSeekName = "<｜tool▁sep｜>";
constexpr std::string_view kDeepSeekCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kDeepSeekEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kBlanks = " \t\r\n";

constexpr std::array<std::pair<std::string_view, ToolCallFormat>, 6> kParsers = {
    {{"hermes", ToolCallFormat::kHermes},
     {"llama3_json", ToolCallFormat::kLlama3Json},
     {"mistral", ToolCallFormat::kMistral},
     {"deepseek_v3", ToolCallFormat::kDeepSeekV3},
     {"json", ToolCallFormat::kJson},
     {"none", ToolCallFormat::kNone}}};

size_t after_blanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

// The length of the longest end of `text` that begins `mark` and is not all of it.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

// True if more text could make it begin with the mark.
bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// Letters, digits and a few signs.
bool is_tool_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  });
}

// The end of the JSON value at `at`; nothing if it is not complete.
std::optional<size_t> end_of_value(std::string_view text, size_t at) {
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      if (i >= text.size()) return {};
      if (depth == 0) return i + 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']' || c == ',') {
      if (depth == 0) return i;  // of a number or a word
      if (c != ',' && --depth == 0) return i + 1;
    }
  }
  return {};
}

// The object of a call as far as it is known.
struct CallHeader {
  enum { kIncomplete, kNoCall, kKnown } state = kIncomplete;
  std::string name = {};
  size_t arguments = 0;  // where they begin
  // Both are known only for an object that is complete.
  std::optional<size_t> arguments_end = {};
  size_t end = 0;
};

CallHeader header_of(std::string_view text) {
  CallHeader header;
  std::optional<std::pair<size_t, size_t>> arguments;
  bool has_name = false;
  const auto fail = [&] {
    header.state = CallHeader::kNoCall;
    return header;
  };
  for (size_t at = 1;;) {
    at = after_blanks(text, at);
    if (at == text.size()) return header;
    if (text[at] == '}') {
      if (!has_name) return fail();
      header.state = CallHeader::kKnown;
      header.arguments = arguments ? arguments->first : at;
      header.arguments_end = arguments ? arguments->second : at;
      header.end = at + 1;
      return header;
    }
    if (text[at] == ',') {
      ++at;
      continue;
    }
    if (text[at] != '"') return fail();
    const auto key_end = end_of_value(text, at);
    if (!key_end) return header;
    const std::string_view key = text.substr(at + 1, *key_end - at - 2);
    at = after_blanks(text, *key_end);
    if (at == text.size()) return header;
    if (text[at] != ':') return fail();
    at = after_blanks(text, at + 1);
    if (at == text.size()) return header;
    const bool is_arguments = key == "arguments" || key == "parameters";
    if (is_arguments && has_name && text[at] != '"') {
      header.state = CallHeader::kKnown;
      header.arguments = at;
      return header;
    }
    const auto end = end_of_value(text, at);
    if (!end) return header;
    if (is_arguments) arguments = {at, *end};
    if (key == "name") {
      const json name = json::parse(text.substr(at, *end - at), nullptr, false);
      if (!name.is_string()) return fail();
      header.name = name.get<std::string>();
      has_name = true;
    }
    at = *end;
  }
}

// Arguments as OpenAI has them: the text of an object. Some models write that text as a string.
std::string arguments_of(std::string_view value) {
  if (value.empty() || value == "null") return "{}";
  if (value.front() == '"') {
    const json text = json::parse(value, nullptr, false);
    if (text.is_string()) return text.get<std::string>();
  }
  return std::string(value);
}

}  // namespace

std::vector<std::string> known_tool_call_parsers() {
  std::vector<std::string> names;
  for (const auto& [name, format] : kParsers) {
    if (format != ToolCallFormat::kNone) names.emplace_back(name);
  }
  return names;
}

std::optional<ToolCallFormat> tool_call_format_of(std::string_view name) {
  const auto place = std::ranges::find(kParsers, name, &decltype(kParsers)::value_type::first);
  return place == kParsers.end() ? std::nullopt : std::optional(place->second);
}

ToolCallFormat tool_call_format_of_template(std::string_view source) {
  const auto has = [&](std::string_view mark) {
    return source.find(mark) != std::string_view::npos;
  };
  if (has(kHermesBegin)) return ToolCallFormat::kHermes;
  if (has(kMistralCalls)) return ToolCallFormat::kMistral;
  if (has(kDeepSeekCalls)) return ToolCallFormat::kDeepSeekV3;
  if (has(kPythonTag) || has(R"("parameters": dictionary)")) return ToolCallFormat::kLlama3Json;
  return ToolCallFormat::kNone;
}

ToolCallReader::ToolCallReader(ToolCallFormat format, std::vector<std::string> tools)
    : format_(format), tools_(std::move(tools)) {}

std::vector<ToolCallEvent> ToolCallReader::push(std::string_view text) {
  buffer_ += text;
  return read(false);
}

std::vector<ToolCallEvent> ToolCallReader::finish() {
  std::vector<ToolCallEvent> events = read(true);
  if (state_ == State::kCall) add_content(std::exchange(dropped_, {}), events);
  return events;
}

std::vector<ToolCallEvent> ToolCallReader::read(bool is_last) {
  std::vector<ToolCallEvent> events;
  const auto goes_on = [&] {
    switch (state_) {
      case State::kText:
        return read_text(is_last, events);
      case State::kCall:
        return read_call(is_last, events);
      case State::kHeader:
        return read_header(is_last, events);
      case State::kArguments:
        return read_arguments(is_last, events);
      case State::kRest:
        return read_rest();
      case State::kAfter:
        return read_after(is_last);
      case State::kPlain:
        add_content(std::exchange(buffer_, {}), events);
    }
    return false;
  };
  while (!buffer_.empty() && goes_on()) {
  }
  return events;
}

// Formats whose calls may begin a text without a mark.
bool ToolCallReader::is_bare() const {
  return format_ == ToolCallFormat::kLlama3Json || format_ == ToolCallFormat::kJson;
}

std::string_view ToolCallReader::mark() const {
  switch (format_) {
    case ToolCallFormat::kHermes:
      return kHermesBegin;
    case ToolCallFormat::kLlama3Json:
      return kPythonTag;
    case ToolCallFormat::kMistral:
      return kMistralCalls;
    case ToolCallFormat::kDeepSeekV3:
      return kDeepSeekCalls;
    default:
      return {};
  }
}

void ToolCallReader::drop(size_t count) {
  dropped_ += buffer_.substr(0, count);
  buffer_.erase(0, count);
}

void ToolCallReader::add_content(std::string text, std::vector<ToolCallEvent>& events) {
  if (text.empty()) return;
  has_content_ = true;
  events.push_back({.content = std::move(text)});
}

// The text since the last call is none.
bool ToolCallReader::give_up(std::vector<ToolCallEvent>& events) {
  buffer_.insert(0, std::exchange(dropped_, {}));
  if (is_bare()) {
    state_ = State::kPlain;
    return true;
  }
  // The mark is content, and so is what follows, up to another mark.
  const size_t place = buffer_.find(mark());
  const size_t count = place == std::string::npos ? buffer_.size() : place + mark().size();
  add_content(buffer_.substr(0, count), events);
  buffer_.erase(0, count);
  state_ = State::kText;
  return true;
}

// Text outside of calls. Blanks at the beginning, and what may begin a mark, wait.
bool ToolCallReader::read_text(bool is_last, std::vector<ToolCallEvent>& events) {
  const size_t first = after_blanks(buffer_, 0);
  if (!has_content_ && first == buffer_.size()) {
    if (is_last && !has_calls_) add_content(std::exchange(buffer_, {}), events);
    return false;
  }
  const bool is_list = format_ == ToolCallFormat::kJson && buffer_[first] == '[';
  if (is_bare() && !has_content_ && (buffer_[first] == '{' || is_list)) {
    has_mark_ = false;
    drop(first + (is_list ? 1 : 0));
    state_ = State::kCall;
    return true;
  }
  const size_t place = mark().empty() ? std::string::npos : buffer_.find(mark());
  if (place != std::string::npos) {
    if (has_content_ || first < place) add_content(buffer_.substr(0, place), events);
    buffer_.erase(0, place);
    drop(mark().size());
    has_mark_ = true;
    state_ = State::kCall;
    return true;
  }
  const size_t held = is_last || mark().empty() ? 0 : begun(buffer_, mark());
  if (!has_content_ && first + held >= buffer_.size()) return false;
  add_content(buffer_.substr(0, buffer_.size() - held), events);
  buffer_.erase(0, buffer_.size() - held);
  return false;
}

// The beginning of a call, behind a mark or another call.
bool ToolCallReader::read_call(bool is_last, std::vector<ToolCallEvent>& events) {
  drop(after_blanks(buffer_, 0));
  if (buffer_.empty()) return false;
  if (format_ == ToolCallFormat::kDeepSeekV3) return read_deepseek_name(is_last, events);
  const bool takes_list = format_ == ToolCallFormat::kMistral || format_ == ToolCallFormat::kJson;
  if (takes_list && buffer_.front() == '[') {
    if (buffer_.size() == 1 && !is_last) return false;
    if (buffer_.starts_with("[A")) return give_up(events);  // arguments without a name
    drop(1);
    return true;
  }
  if (buffer_.front() == '{') {
    state_ = State::kHeader;
    return true;
  }
  if (format_ == ToolCallFormat::kMistral) return read_mistral_name(is_last, events);
  return give_up(events);
}

bool ToolCallReader::read_mistral_name(bool is_last, std::vector<ToolCallEvent>& events) {
  const size_t end = std::min(buffer_.find('{'), buffer_.find('['));
  if (end == std::string::npos) return is_last && give_up(events);
  size_t arguments = end;
  if (buffer_[end] == '[') {
    const std::string_view rest = std::string_view(buffer_).substr(end);
    const bool has_known_mark = rest.starts_with(kMistralArguments) || rest.starts_with(kMistralId);
    if (!has_known_mark) {
      const bool may_be = may_become(rest, kMistralArguments) || may_become(rest, kMistralId);
      return may_be && !is_last ? false : give_up(events);
    }
    arguments = buffer_.find('{', end);
    if (arguments == std::string::npos) return is_last && give_up(events);
  }
  std::string name = buffer_.substr(0, end);
  name.resize(name.find_last_not_of(kBlanks) + 1);
  if (!is_tool_name(name)) return give_up(events);
  buffer_.erase(0, arguments);
  begin_call(name, State::kAfter, events);
  return true;
}

bool ToolCallReader::read_deepseek_name(bool is_last, std::vector<ToolCallEvent>& events) {
  if (may_become(buffer_, kDeepSeekCall)) return is_last && give_up(events);
  if (!buffer_.starts_with(kDeepSeekCall)) return give_up(events);
  const size_t separator = buffer_.find(kDeepSeekName);
  if (separator == std::string::npos) return is_last && give_up(events);
  const size_t arguments = buffer_.find('{', separator);
  if (arguments == std::string::npos) return is_last && give_up(events);
  std::string name = buffer_.substr(kDeepSeekCall.size(), separator - kDeepSeekCall.size());
  if (name == "function") {
    const size_t begin = separator + kDeepSeekName.size();
    name = buffer_.substr(begin, std::min(buffer_.find('\n', begin), arguments) - begin);
  }
  if (!is_tool_name(name)) return give_up(events);
  buffer_.erase(0, arguments);
  begin_call(name, State::kAfter, events);
  return true;
}

void ToolCallReader::begin_call(const std::string& name, State after,
                                std::vector<ToolCallEvent>& events) {
  events.push_back({.name = name});
  has_calls_ = true;
  dropped_.clear();
  after_arguments_ = after;
  state_ = State::kArguments;
  depth_ = 0;
  is_in_string_ = is_escaped_ = false;
}

// The object of a call up to its arguments.
bool ToolCallReader::read_header(bool is_last, std::vector<ToolCallEvent>& events) {
  const CallHeader header = header_of(buffer_);
  if (header.state == CallHeader::kIncomplete) return is_last && give_up(events);
  const bool is_tool = has_mark_ || std::ranges::find(tools_, header.name) != tools_.end();
  if (header.state == CallHeader::kNoCall || !is_tool) return give_up(events);
  if (header.arguments_end) {
    const std::string_view value = std::string_view(buffer_).substr(
        header.arguments, *header.arguments_end - header.arguments);
    events.push_back({.name = header.name, .arguments = arguments_of(value)});
    buffer_.erase(0, header.end);
    dropped_.clear();
    has_calls_ = true;
    state_ = State::kAfter;
    return true;
  }
  buffer_.erase(0, header.arguments);
  begin_call(header.name, State::kRest, events);
  return true;
}

// Arguments, which are given as they come.
bool ToolCallReader::read_arguments(bool is_last, std::vector<ToolCallEvent>& events) {
  const bool is_nested = depth_ > 0 || buffer_.front() == '{' || buffer_.front() == '[';
  if (!is_nested) {  // a number or a word
    const size_t end = buffer_.find_first_of("},]");
    if (end == std::string::npos && !is_last) return false;
    std::string value = buffer_.substr(0, end);
    buffer_.erase(0, value.size());
    value.resize(value.find_last_not_of(kBlanks) + 1);
    events.push_back({.arguments = arguments_of(value)});
    state_ = after_arguments_;
    return true;
  }
  size_t end = 0;
  while (end < buffer_.size()) {
    const char c = buffer_[end++];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = is_in_string_;
    } else if (c == '"') {
      is_in_string_ = !is_in_string_;
    } else if (!is_in_string_ && (c == '{' || c == '[')) {
      ++depth_;
    } else if (!is_in_string_ && (c == '}' || c == ']') && --depth_ == 0) {
      state_ = after_arguments_;
      break;
    }
  }
  events.push_back({.arguments = buffer_.substr(0, end)});
  buffer_.erase(0, end);
  return true;
}

// Members of the call's object behind its arguments, which tell nothing.
bool ToolCallReader::read_rest() {
  size_t at = 0;
  while (at < buffer_.size() && buffer_[at] != '}') {
    const auto end = buffer_[at] == '"' ? end_of_value(buffer_, at) : std::optional(at + 1);
    if (!end) return false;
    at = *end;
  }
  const bool is_over = at < buffer_.size();
  buffer_.erase(0, at + (is_over ? 1 : 0));
  if (is_over) state_ = State::kAfter;
  return is_over;
}

// Marks between calls.
bool ToolCallReader::read_after(bool is_last) {
  static constexpr std::array<std::string_view, 8> kBetween = {
      kHermesEnd, kDeepSeekCallEnd, kDeepSeekEnd, "```", ",", ";", "]", kMistralCalls};
  const std::string_view text = buffer_;
  const size_t at = after_blanks(text, 0);
  const std::string_view rest = text.substr(at);
  for (const std::string_view one : kBetween) {
    if (!is_last && !rest.empty() && may_become(rest, one)) return false;
    if (!rest.starts_with(one)) continue;
    const bool ends_calls = one == kHermesEnd || one == kDeepSeekEnd || one == "]";
    buffer_.erase(0, at + one.size());
    if (one == kMistralCalls) state_ = State::kCall;
    if (ends_calls) has_content_ = false;
    if (one == kHermesEnd) state_ = State::kText;
    return true;
  }
  if (rest.empty()) {
    buffer_.clear();
    return false;
  }
  buffer_.erase(0, at);
  has_content_ = false;
  const bool is_deepseek = format_ == ToolCallFormat::kDeepSeekV3;
  if (is_deepseek && !is_last && may_become(buffer_, kDeepSeekCall)) return false;
  const bool begins_call = is_deepseek
                               ? buffer_.starts_with(kDeepSeekCall)
                               : buffer_.front() == '{' && format_ != ToolCallFormat::kHermes;
  if (begins_call) {
    state_ = State::kCall;
  } else {
    state_ = is_bare() ? State::kPlain : State::kText;
  }
  return true;
}

}  // namespace megatron::serve
