#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Calls of tools in the text of a response.
namespace megatron::serve {

// Formats of tool calls; the names are vLLM's.
//
//   hermes       <tool_call>{"name": "f", "arguments": {..}}</tool_call>   Hermes 2 Pro, Qwen 2.5,
//   3 llama3_json  {"name": "f", "parameters": {..}}; {..}                   Llama 3.1, 3.2
//                with or without <|python_tag|> before it
//   mistral      [TOOL_CALLS] [{"name": "f", "arguments": {..}}, ..]       until tokenizer v7
//                [TOOL_CALLS]f{..} or [TOOL_CALLS]f[ARGS]{..}              since v11
//   deepseek_v3
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{..}\n```
//                <｜tool▁call▁end｜>.. or f<｜tool▁sep｜>{..} (V3.1)
//   json         {"name": "f", "arguments": {..}}, or a list of such objects
//
// "arguments" and "parameters" are read alike everywhere.
enum class ToolCallFormat { kNone, kHermes, kLlama3Json, kMistral, kDeepSeekV3, kJson };

// All names but "none".
std::vector<std::string> known_tool_call_parsers();
// Nothing for an unknown name; "none" is one.
std::optional<ToolCallFormat> tool_call_format_of(std::string_view name);
// The format that the text of a chat template tells the model; kNone if it tells none.
ToolCallFormat tool_call_format_of_template(std::string_view source);

// Change of the response by a further piece of text.
struct ToolCallEvent {
  std::string content = {};              // text outside of calls
  std::optional<std::string> name = {};  // a call of this tool begins
  std::string arguments = {};            // text that follows in the last call's arguments
};

// Separates calls from other text while it comes. Text that begins like a call and is none is
// content; without a mark of the format before it, only a call of a tool of the list is one.
class ToolCallReader {
 public:
  ToolCallReader(ToolCallFormat format, std::vector<std::string> tools);

  std::vector<ToolCallEvent> push(std::string_view text);
  // The text has ended: returns what was held back.
  std::vector<ToolCallEvent> finish();

 private:
  enum class State { kText, kCall, kHeader, kArguments, kRest, kAfter, kPlain };

  std::vector<ToolCallEvent> read(bool is_last);
  bool read_text(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_call(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_mistral_name(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_deepseek_name(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_header(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_arguments(bool is_last, std::vector<ToolCallEvent>& events);
  bool read_rest();
  bool read_after(bool is_last);
  bool give_up(std::vector<ToolCallEvent>& events);
  void begin_call(const std::string& name, State after, std::vector<ToolCallEvent>& events);
  void drop(size_t count);
  void add_content(std::string text, std::vector<ToolCallEvent>& events);
  bool is_bare() const;
  std::string_view mark() const;

  ToolCallFormat format_;
  std::vector<std::string> tools_;
  State state_ = State::kText;
  std::string buffer_;        // not read yet
  std::string dropped_;       // read since the text before the call, for text that is none
  bool has_mark_ = false;     // before the call
  bool has_content_ = false;  // other than blanks
  bool has_calls_ = false;
  State after_arguments_ = State::kRest;
  // State of the JSON value that is being read.
  int depth_ = 0;
  bool is_in_string_ = false;
  bool is_escaped_ = false;
};

}  // namespace megatron::serve
