// Requests that are made to harm: deep, large and many values, many bodies, texts for a terminal.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/serve/megatron_api.h"
#include "megatron/serve/openai_request.h"
#include "megatron/serve/request_body.h"
#include "tests/serve/plain_socket.h"
#include "tests/serve/running_server.h"
#include "tests/support/captured_output.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string lists(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

httplib::Result sent(const RunningServer& server, const std::string& path,
                     const std::string& body) {
  if (path == "/api") return server.put(body);
  return server.client()->Post(path, body, "application/json");
}

struct Field {
  const char* path;
  const char* name;
};
constexpr Field kFields[] = {{"/v1/completions", "temperature"},
                             {"/v1/completions", "n"},
                             {"/v1/completions", "stream"},
                             {"/v1/completions", "prompt"},
                             {"/v1/completions", "logit_bias"},
                             {"/v1/completions", "stop"},
                             {"/v1/completions", "unknown"},
                             {"/v1/completions", "model"},
                             {"/v1/chat/completions", "messages"},
                             {"/tokenize", "prompt"},
                             {"/detokenize", "tokens"},
                             {"/api", "prompts"},
                             {"/api", "temperature"},
                             {"/api", "no_log"}};

TEST(HostileRequestTest, DeepValuesAreRefused) {
  CapturedStdout log;
  ServerOptions options;
  options.logs_requests = true;
  const RunningServer server(options);
  std::string wrong;  // told when the log has ended
  for (const auto& [path, name] : kFields) {
    for (const size_t depth : {size_t{60}, size_t{100'000}, size_t{1'000'000}}) {
      const httplib::Result result = sent(
          server, path, "{\"prompts\":[\"a\"],\"" + std::string(name) + "\":" + lists(depth) + "}");
      ASSERT_TRUE(result) << path << " " << name << " " << depth;
      const bool is_deep = depth > 60;
      const bool is_refused =
          result->status == 400 &&
          result->body.find("the body: JSON is nested deeper than 64 levels") != std::string::npos;
      if (is_deep != is_refused || result->body.size() > 600) {
        wrong += std::string(path) + " " + name + " " + std::to_string(depth) + ": " +
                 result->body.substr(0, 1000);
      }
    }
  }
  EXPECT_EQ(server.client()->Get("/health")->status, 200);
  EXPECT_LT(log.text().size(), 20'000u);
  EXPECT_EQ(wrong, "");
}

TEST(HostileRequestTest, RefusalsDoNotRepeatLongValues) {
  const RunningServer server;
  const std::string escape = "\xC2\x9B" + std::string("\x1b[31m\xE2\x80\xAE");
  for (const char* name : {"temperature", "n", "stream", "model", "top_k", "seed"}) {
    json body = {{"prompt", "a"}};
    body[name] = escape + std::string(100'000, 'x');
    const httplib::Result result = server.post("/v1/completions", body);
    EXPECT_GE(result->status, 400) << name;
    EXPECT_LE(result->body.size(), 400u) << name;
    const std::string message = json::parse(result->body)["error"]["message"];
    EXPECT_THAT(message, HasSubstr("\\u009b\\u001b[31m\\u202exxx")) << name;
  }
}

TEST(HostileRequestTest, ManyValuesAreRefused) {
  const RunningServer server;
  std::string zeros = "[0";
  for (int i = 0; i < 1'100'000; ++i) zeros += ",0";
  const std::string body = "{\"prompt\":" + zeros + "]}";
  for (const char* path : {"/v1/completions", "/tokenize", "/api"}) {
    const httplib::Result result = sent(server, path, body);
    EXPECT_EQ(result->status, 400) << path;
    EXPECT_THAT(result->body, HasSubstr("the body: has more than 1048576 values at byte")) << path;
  }
}

// Posts the beginning of a body, whose rest never comes.
void send_half_of_a_body(const PlainSocket& socket, size_t bytes) {
  socket.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(2 * bytes) + "\r\n\r\n" + std::string(bytes, ' '));
}

TEST(HostileRequestTest, BodiesShareTheMemoryOfRequests) {
  ServerOptions options;
  options.limits.max_body_bytes = 1 << 20;
  options.limits.max_request_memory = HttpLimits::kMemoryOfByte * 600'000;
  const RunningServer server(options);
  const json small = {{"prompt", "a"}, {"max_tokens", 1}};
  const std::string large = small.dump() + std::string(300'000, ' ');
  EXPECT_EQ(sent(server, "/v1/completions", large)->status, 200);
  {
    // A head that arrives beside another large body is refused itself, and the next one tries.
    std::vector<std::unique_ptr<PlainSocket>> holds;
    const auto sent_beside_another = [&] {
      holds.push_back(std::make_unique<PlainSocket>(server.server->port()));
      send_half_of_a_body(*holds.back(), 250'000);
      return sent(server, "/v1/completions", large);
    };
    httplib::Result refused = sent_beside_another();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (refused && refused->status == 200 && std::chrono::steady_clock::now() < deadline) {
      refused = sent_beside_another();
    }
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 429);
    EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
    EXPECT_THAT(refused->body, HasSubstr("more memory than --max-request-memory allows"));
    EXPECT_EQ(sent(server, "/nowhere", large)->status, 429);
    // Small requests have a place whatever others hold.
    EXPECT_EQ(sent(server, "/v1/completions", small.dump())->status, 200);
  }
  // The body that was held has gone with its client.
  httplib::Result again = sent(server, "/v1/completions", large);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (again->status == 429 && std::chrono::steady_clock::now() < deadline) {
    again = sent(server, "/v1/completions", large);
  }
  EXPECT_EQ(again->status, 200);
}

// Bodies that come at the same time do not keep each other from being read.
TEST(HostileRequestTest, LargeBodiesTakeTurns) {
  ServerOptions options;
  options.limits.max_request_memory = HttpLimits::kMemoryOfByte * 1'500'000;
  const RunningServer server(options);
  const json body = {{"prompt", "a"}, {"max_tokens", 1}};
  const std::string large = body.dump() + std::string(1'000'000, ' ');
  std::vector<std::future<int>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::async(std::launch::async, [&] {
      const httplib::Result result = sent(server, "/v1/completions", large);
      return result ? result->status : 0;
    }));
  }
  int answered = 0;
  for (auto& client : clients) {
    const int status = client.get();
    EXPECT_TRUE(status == 200 || status == 429) << status;
    answered += status == 200 ? 1 : 0;
  }
  EXPECT_GE(answered, 1);
}

TEST(HostileRequestTest, TextsThatCannotFitAreNotTokenized) {
  const RunningServer server;
  const std::string text(70'000, 'a');  // of a model with 64 positions
  const httplib::Result result = server.post("/v1/completions", {{"prompt", text}});
  EXPECT_EQ(result->status, 400);
  EXPECT_THAT(result->body, HasSubstr("However, your prompt has 70000 bytes"));
  EXPECT_THAT(result->body, HasSubstr("context_length_exceeded"));
  EXPECT_THAT(server.put(json{{"prompts", {text}}}.dump())->body, HasSubstr("longer than allowed"));
}

TEST(HostileRequestTest, HeadsHaveALimit) {
  const RunningServer server;
  const auto answer = [&](size_t lines) {
    const PlainSocket socket(server.server->port());
    std::string head = "GET /health HTTP/1.1\r\nConnection: close\r\n";
    for (size_t i = 0; i < lines; ++i) head += "X: y\r\n";
    socket.send(head + "\r\n");
    return socket.rest();
  };
  EXPECT_THAT(answer(100), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer(100'000), Not(StartsWith("HTTP/1.1 200")));
}

TEST(HostileRequestTest, RangesAreNotOffered) {
  const RunningServer server;
  const std::string page = server.client()->Get("/")->body;
  for (const std::string ranges : {"bytes=0-", "bytes=0-,0-,0-,0-", "bytes=5-9"}) {
    const httplib::Result result = server.client()->Get("/", {{"Range", ranges}});
    EXPECT_EQ(result->status, 200) << ranges;
    EXPECT_EQ(result->body, page) << ranges;
  }
}

TEST(HostileRequestTest, LogsCannotMoveATerminal) {
  CapturedStdout out;
  ServerOptions options;
  options.logs_requests = true;
  const RunningServer server(options);
  server.put(
      "{\"prompts\":[\"a\xC2\x9B"
      "2J\xE2\x80\xAE\\u001b\"],\"tokens_to_generate\":1}");
  server.put("{\"prompts\":[\"" + std::string(1'000'000, 'a') + "\"]}");
  const std::string log = out.text();
  EXPECT_THAT(log, HasSubstr("\\u009b2J\\u202e\\u001b"));
  EXPECT_EQ(log.find('\x9B'), std::string::npos);
  EXPECT_LT(log.size(), 20'000u);
}

std::unique_ptr<GptModel> broken_model(const Tokenizer& tokenizer) {
  auto model = tiny_model(tokenizer);
  for (const Parameter& one : named_parameters(*model)) {
    Tensor data = one.variable.data();  // the same elements
    std::fill_n(data.view().as<float>(), data.numel(), std::numeric_limits<float>::quiet_NaN());
  }
  return model;
}

TEST(HostileRequestTest, TheLogSaysWhyAnAnswerIs500) {
  CapturedStderr out;
  const ServerOf<GptModel> server(broken_model, {}, {}, nullptr);
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}})->status, 500);
  EXPECT_EQ(server.put("{\"prompts\":[\"a\"],\"tokens_to_generate\":2}")->status, 500);
  server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}, {"stream", true}});
  const std::string log = out.text();
  size_t found = 0;
  for (size_t at = 0; (at = log.find("/v1/completions: 500, ", at)) != std::string::npos; ++at) {
    ++found;
  }
  EXPECT_EQ(found, 2u) << log;
  EXPECT_THAT(log, HasSubstr("PUT /api: 500, "));
}

TEST(HostileRequestTest, ANullTokenizerAnswersMegatronsRequests) {
  const std::unique_ptr<Tokenizer> tiny = tiny_tokenizer();
  const auto model = tiny_model(*tiny);
  const auto tokenizer = make_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 100});
  Service service({*model}, {}, {});
  ServedModel served{.service = service,
                     .tokenizer = *tokenizer,
                     .name = "null",
                     .vocab_size = 100,
                     .max_positions = 64,
                     .chat_template = ChatTemplate::built_in("plain")};
  std::thread engine([&] { service.run(); });
  const auto put = [&](const char* body) { return megatron_api(served, body, "application/json"); };
  const Answer plain = put(R"({"prompts":["5 17 60"],"tokens_to_generate":2,"top_k":1})");
  const Answer stops = put(R"({"prompts":["5"],"tokens_to_generate":2,"stop_on_eol":true,
                               "prevent_newline_after_colon":true})");
  const Answer words = put(R"({"prompts":["no ids"],"tokens_to_generate":2})");
  service.stop(std::chrono::seconds(20));
  engine.join();
  EXPECT_EQ(plain.status, 200);
  EXPECT_THAT(plain.body, HasSubstr("\"text\":[\"5 17 60 "));
  EXPECT_THAT(stops.body, HasSubstr("\"text\":[\"5 "));
  EXPECT_EQ(words.status, 200);  // as every refusal of Megatron-LM behind that of prompts
  EXPECT_THAT(words.body, HasSubstr("is not an id in [0, 101)"));
}

}  // namespace
}  // namespace megatron::serve
