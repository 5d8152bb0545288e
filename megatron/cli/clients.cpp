#include "megatron/cli/clients.h"

#include <fmt/format.h>
#include <httplib.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kPatience(30);

// Prints a question and reads a line; nothing at the end of standard input.
std::optional<std::string> asked(const std::string& question) {
  std::cout << question << std::flush;
  std::string line;
  if (!std::getline(std::cin, line)) return {};
  return line;
}

// The server that the first word names, after which flags may follow.
httplib::Client client_of(const std::string& address) {
  std::string url = address.find("://") == std::string::npos ? "http://" + address : address;
  while (url.ends_with('/')) url.pop_back();
  httplib::Client client(url);
  if (!client.is_valid()) {
    throw ConfigError(fmt::format("{} is not an address; write HOST:PORT", address));
  }
  client.set_read_timeout(kPatience);
  return client;
}

[[noreturn]] void throw_unreachable(const std::string& address, httplib::Error error) {
  throw IoError(
      fmt::format("{}: {}; is the server running there?", address, httplib::to_string(error)));
}

// The first word is the address, the others are flags. False: --help was printed.
bool parse_address(FlagTable& table, const std::string& usage, std::span<const std::string> words,
                   std::string& address) {
  const bool has_address = !words.empty() && !words.front().starts_with("-");
  if (has_address) address = words.front();
  if (!parse_flags(table, usage, has_address ? words.subspan(1) : words)) return false;
  if (address.empty()) {
    throw ConfigError(fmt::format("the address of the server is missing; usage: {}", usage));
  }
  return true;
}

void print_answer(const httplib::Response& response) {
  const json body = try_parse_json(response.body, kJsonLine);
  if (response.status != 200) {
    const bool has_message = body.is_object() && body.contains("message");
    print_line(fmt::format("Error {}: {}", response.status,
                           has_message        ? body["message"].get<std::string>()
                           : body.is_string() ? body.get<std::string>()
                                              : response.body));
  } else if (body.is_object() && body.contains("text")) {
    print_line("Megatron Response: ");
    print_line(body["text"].at(0).get<std::string>());
  } else {  // what the server refuses with status 200
    print_line(
        fmt::format("Error: {}", body.is_string() ? body.get<std::string>() : response.body));
  }
}

struct ChatFlags {
  std::string system;
  std::string api_key;
  int64_t max_tokens = 0;
  double temperature = 1.0;
  double top_p = 1.0;
};

// Prints the pieces of a streamed answer as they come, and keeps them.
class PrintedStream {
 public:
  bool take(const char* data, size_t size) {
    rest_.append(data, size);
    for (size_t end = 0; (end = rest_.find("\n\n")) != std::string::npos; rest_.erase(0, end + 2)) {
      take_frame(rest_.substr(0, end));
    }
    return true;
  }
  std::string text;
  std::string error;
  std::string raw() const { return rest_; }  // an answer that was no stream

 private:
  void take_frame(const std::string& frame) {
    if (!frame.starts_with("data: ") || frame == "data: [DONE]") return;
    const json chunk = try_parse_json(frame.substr(6), kJsonLine);
    if (!chunk.is_object()) return;
    if (chunk.contains("error")) error = chunk["error"].value("message", "unknown error");
    for (const json& choice : chunk.value("choices", json::array())) {
      const std::string piece = choice.value("delta", json::object()).value("content", "");
      std::cout << piece << std::flush;
      text += piece;
    }
  }
  std::string rest_;
};

// Sends the conversation; returns the answer, or nothing after an error, which it prints.
std::optional<std::string> answered(httplib::Client& client, const std::string& address,
                                    const ChatFlags& flags, const json& messages) {
  json body = {{"messages", messages},
               {"stream", true},
               {"temperature", flags.temperature},
               {"top_p", flags.top_p}};
  if (flags.max_tokens > 0) body["max_tokens"] = flags.max_tokens;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.set_header("Content-Type", "application/json");
  if (!flags.api_key.empty()) request.set_header("Authorization", "Bearer " + flags.api_key);
  request.body = body.dump();
  PrintedStream stream;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    return stream.take(data, size);
  };
  const httplib::Result result = client.send(request);
  if (!result) throw_unreachable(address, result.error());
  print_line("");
  if (result->status != 200) {
    const json error = try_parse_json(stream.raw(), kJsonLine);
    stream.error = error.is_object() && error.contains("error")
                       ? error["error"].value("message", "unknown error")
                       : fmt::format("status {}", result->status);
  }
  if (stream.error.empty()) return stream.text;
  print_line(fmt::format("Error: {}", stream.error));
  return {};
}

}  // namespace

int text_generation_cli(std::span<const std::string> words) {
  FlagTable table;
  std::string address;
  if (!parse_address(table, "megatron text-generation-cli HOST:PORT", words, address)) return 0;
  httplib::Client client = client_of(address);
  for (;;) {
    const auto prompt = asked("Enter prompt: ");
    if (!prompt) break;
    const auto answer = asked("Enter number of tokens to generate: ");
    if (!answer) break;
    const std::optional<int64_t> count = integer_of(*answer);
    if (!count) {
      print_line(fmt::format("{} is no number", *answer));
      continue;
    }
    const json body = {{"prompts", {*prompt}}, {"tokens_to_generate", *count}};
    const httplib::Result result = client.Put("/api", body.dump(), "application/json");
    if (!result) throw_unreachable(address, result.error());
    print_answer(*result);
  }
  print_line("");
  return 0;
}

int chat(std::span<const std::string> words) {
  ChatFlags flags;
  FlagTable table;
  table.group("chat");
  table.add_optional("--system", flags.system, "The system's message.");
  table.add_optional("--api-key", flags.api_key,
                     "Key of the server; better set MEGATRON_API_KEY, which ps does not show.");
  table.add_optional("--max-tokens", flags.max_tokens, "Maximum tokens of a response.");
  table.add("--temperature", flags.temperature, "Sampling temperature; 0 is greedy.");
  table.add("--top-p", flags.top_p, "Nucleus sampling with this probability.");
  std::string address;
  if (!parse_address(table, "megatron chat HOST:PORT [flags]", words, address)) return 0;
  if (const char* key = std::getenv("MEGATRON_API_KEY"); flags.api_key.empty() && key != nullptr) {
    flags.api_key = key;
  }
  httplib::Client client = client_of(address);
  json messages = json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  while (const auto line = asked("> ")) {
    if (*line == "/quit") break;
    if (line->empty()) continue;
    messages.push_back({{"role", "user"}, {"content", *line}});
    if (const auto answer = answered(client, address, flags, messages)) {
      messages.push_back({{"role", "assistant"}, {"content", *answer}});
    } else {
      messages.erase(messages.end() - 1);
    }
  }
  return 0;
}

}  // namespace megatron::cli
