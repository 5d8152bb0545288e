#include "megatron/serve/tool_calls.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Format = ToolCallFormat;

struct Read {
  std::string content = {};
  std::vector<std::string> calls = {};  // name(arguments)
  bool operator==(const Read&) const = default;
};

void PrintTo(const Read& read, std::ostream* out) {
  *out << json(read.content) << ' ' << json(read.calls);
}

// Reads a response in pieces of a number of bytes.
Read read_by(Format format, const std::string& text, size_t bytes) {
  ToolCallReader reader(format, {"f", "get_weather"});
  Read read;
  const auto take = [&](const std::vector<ToolCallEvent>& events) {
    for (const ToolCallEvent& event : events) {
      read.content += event.content;
      if (event.name) read.calls.push_back(*event.name + "|");
      if (!event.arguments.empty()) read.calls.back() += event.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader.push(text.substr(at, bytes)));
  take(reader.finish());
  return read;
}

void expect_read(Format format, const std::string& text, const Read& expected) {
  for (const size_t bytes : {1U, 2U, 3U, 7U, 1000U}) {
    EXPECT_EQ(read_by(format, text, bytes), expected) << text << " by " << bytes;
  }
}

const std::string kArguments = R"({"city": "S\"ão}", "days": [1, {"a": 2}]})";

TEST(ToolCallReaderTest, Hermes) {
  expect_read(Format::kHermes,
              "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": " + kArguments +
                  "}\n</tool_call>",
              {"Let me look.\n", {"f|" + kArguments}});
  expect_read(
      Format::kHermes,
      "\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
      "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"g\", \"id\": \"}\"}</tool_call>\n",
      {"", {"f|{}", "g|{\"x\": 1}"}});
  expect_read(Format::kHermes, "a < b and <tool", {"a < b and <tool", {}});
  expect_read(Format::kHermes, "<tool_call>no JSON</tool_call>",
              {"<tool_call>no JSON</tool_call>", {}});
  expect_read(Format::kHermes, R"({"name": "f", "arguments": {}})",
              {R"({"name": "f", "arguments": {}})", {}});
  // Cut by the maximum number of tokens.
  expect_read(Format::kHermes,
              "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ", {"", {"f|{\"x\": "}});
  expect_read(Format::kHermes, "<tool_call>{\"name\": \"f", {"<tool_call>{\"name\": \"f", {}});
  // Arguments written as a string, or left out.
  expect_read(Format::kHermes, R"(<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>)",
              {"", {"f|{\"x\": 1}"}});
  expect_read(Format::kHermes, R"(<tool_call>{"name": "f"}</tool_call>ok)", {"ok", {"f|{}"}});
}

TEST(ToolCallReaderTest, Llama) {
  expect_read(Format::kLlama3Json, R"({"name": "f", "parameters": {"x": 1}})",
              {"", {"f|{\"x\": 1}"}});
  expect_read(
      Format::kLlama3Json,
      R"(<|python_tag|>{"name": "g", "parameters": {"x": 1}}; {"name": "f", "parameters": {}})",
      {"", {"g|{\"x\": 1}", "f|{}"}});
  expect_read(Format::kLlama3Json, R"({"name": "Anna", "age": 3})",
              {R"({"name": "Anna", "age": 3})", {}});
  expect_read(Format::kLlama3Json, "Hello {\"name\": \"f\"}", {"Hello {\"name\": \"f\"}", {}});
  expect_read(Format::kLlama3Json, " \n", {" \n", {}});
}

TEST(ToolCallReaderTest, Mistral) {
  expect_read(
      Format::kMistral,
      R"([TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}])",
      {"", {"f|{\"x\": 1}", "g|{}"}});
  expect_read(Format::kMistral, R"(Well. [TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g[ARGS]{"y": [2]})",
              {"Well. ", {"f|{\"x\": 1}", "g|{\"y\": [2]}"}});
  expect_read(Format::kMistral, R"([TOOL_CALLS]f[CALL_ID]123456789[ARGS]{})", {"", {"f|{}"}});
  expect_read(Format::kMistral, "[TOOL_CAL", {"[TOOL_CAL", {}});
  expect_read(Format::kMistral, "[TOOL_CALLS]", {"[TOOL_CALLS]", {}});
  expect_read(Format::kMistral, "[TOOL_CALLS][ARGS]{}", {"[TOOL_CALLS][ARGS]{}", {}});
  expect_read(Format::kMistral, "[TOOL_CALLS]two words{}", {"[TOOL_CALLS]two words{}", {}});
}

TEST(ToolCallReaderTest, DeepSeek) {
  expect_read(
      Format::kDeepSeekV3,
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```"
      "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      {"", {"f|{\"x\": 1}", "g|{}"}});
  expect_read(
      Format::kDeepSeekV3,
      "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>",
      {"Hm", {"f|{\"x\": 1}"}});
}

TEST(ToolCallReaderTest, Json) {
  expect_read(Format::kJson,
              R"([{"name": "f", "arguments": {"x": 1}}, {"name": "f", "parameters": {}}])",
              {"", {"f|{\"x\": 1}", "f|{}"}});
  expect_read(Format::kJson, R"([1, 2])", {"[1, 2]", {}});
  expect_read(Format::kJson, R"({"name": "other", "arguments": {}})",
              {R"({"name": "other", "arguments": {}})", {}});
}

TEST(ToolCallReaderTest, FormatOfATemplate) {
  EXPECT_EQ(tool_call_format_of_template("... <tool_call> ..."), Format::kHermes);
  EXPECT_EQ(tool_call_format_of_template("{{ '[TOOL_CALLS]' }}"), Format::kMistral);
  EXPECT_EQ(tool_call_format_of_template("<|python_tag|>"), Format::kLlama3Json);
  EXPECT_EQ(tool_call_format_of_template("'<｜tool▁calls▁begin｜>'"), Format::kDeepSeekV3);
  EXPECT_EQ(tool_call_format_of_template("<|im_start|>"), Format::kNone);
  EXPECT_EQ(tool_call_format_of("hermes"), Format::kHermes);
  EXPECT_EQ(tool_call_format_of("none"), Format::kNone);
  EXPECT_FALSE(tool_call_format_of("auto").has_value());
  EXPECT_THAT(known_tool_call_parsers(),
              ElementsAre("hermes", "llama3_json", "mistral", "deepseek_v3", "json"));
}

json weather_chat(const json& choice) {
  const json schema = {
      {"type", "object"}, {"properties", {{"c", {{"enum", {"x", "y"}}}}}}, {"required", {"c"}}};
  const json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}};
  json other = tool;
  other["function"]["name"] = "g";
  return {{"messages", {{{"role", "user"}, {"content", "?"}}}},
          {"tools", {tool, other}},
          {"tool_choice", choice},
          {"seed", 3}};
}

class ToolChoiceTest : public testing::Test {
 protected:
  json posted(const json& body, int status = 200) const {
    const httplib::Result result = server_.post("/v1/chat/completions", body);
    EXPECT_EQ(result->status, status) << result->body;
    return json::parse(result->body);
  }
  std::string refused(const json& body) const { return posted(body, 400)["error"]["message"]; }
  RunningServer server_;
};

TEST_F(ToolChoiceTest, RequiredAndNamedForceACall) {
  const json named = {{"type", "function"}, {"function", {{"name", "g"}}}};
  for (const json& choice : {json("required"), named}) {
    const json whole = posted(weather_chat(choice))["choices"][0];
    EXPECT_EQ(whole["finish_reason"], "tool_calls") << whole;
    EXPECT_TRUE(whole["message"]["content"].is_null());
    ASSERT_EQ(whole["message"]["tool_calls"].size(), 1U) << whole;
    const json& call = whole["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_THAT(call["id"].get<std::string>(), testing::StartsWith("call_"));
    const std::string name = call["function"]["name"];
    EXPECT_TRUE(name == "g" || (name == "f" && choice == "required"));
    const json arguments = json::parse(call["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(arguments["c"] == "x" || arguments["c"] == "y");

    json body = weather_chat(choice);
    body["stream"] = true;
    const httplib::Result result = server_.post("/v1/chat/completions", body);
    json streamed = {{"arguments", ""}};
    std::string finish;
    int names = 0;
    for (const json& chunk : chunks_of(result->body)) {
      const json& part = chunk["choices"][0];
      if (part["finish_reason"].is_string()) finish = part["finish_reason"];
      if (!part["delta"].contains("tool_calls")) continue;
      for (const json& one : part["delta"]["tool_calls"]) {
        EXPECT_EQ(one["index"], 0);
        if (one.contains("id")) {
          ++names;
          streamed["name"] = one["function"]["name"];
        }
        streamed["arguments"] = streamed["arguments"].get<std::string>() +
                                one["function"]["arguments"].get<std::string>();
      }
    }
    EXPECT_EQ(names, 1);
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(streamed["name"], name);
    EXPECT_EQ(streamed["arguments"], call["function"]["arguments"]);
  }
}

TEST_F(ToolChoiceTest, NamesWhatIsWrong) {
  EXPECT_THAT(refused(weather_chat("often")),
              HasSubstr("tool_choice must be auto, none, required"));
  EXPECT_THAT(refused(weather_chat({{"type", "function"}, {"function", {{"name", "h"}}}})),
              HasSubstr("tool_choice h is none of the tools"));
  json body = weather_chat("required");
  body["response_format"] = {{"type", "json_object"}};
  EXPECT_THAT(refused(body), HasSubstr("tool_choice cannot be combined with response_format"));
  body = weather_chat("required");
  body.erase("tools");
  EXPECT_THAT(refused(body), HasSubstr("tool_choice needs tools"));
  body = weather_chat("auto");
  body["parallel_tool_calls"] = 1;
  EXPECT_THAT(refused(body), HasSubstr("parallel_tool_calls must be true or false"));
}

}  // namespace
}  // namespace megatron::serve
