// The server's handling of clients that are slow, disconnected, too many, or send invalid data.
#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <random>
#include <vector>

#include "tests/serve/plain_socket.h"
#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

using Socket = PlainSocket;

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body) {
  return method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Waits for a state that comes soon.
template <class F>
bool becomes_true(const F& f) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (!f()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// A request that takes long: the model is tiny, so there are many rows.
const json kLong = {{"prompt", "a"}, {"max_tokens", 60}, {"n", 128}, {"ignore_eos", true}};

TEST(HttpServerTest, AnsweredBytesOfARefusal) {
  const RunningServer server;
  const Socket socket(server.server->port());
  socket.send(
      "PUT /api HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(socket.rest(),
            "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 28\r\n"
            "Content-Type: application/json\r\n\r\n\"prompts argument required\"\n");
}

TEST(HttpServerTest, BodiesHaveALimit) {
  ServerOptions options;
  options.limits.max_body_bytes = 1000;
  const RunningServer server(options);
  const json body = {{"prompts", {std::string(2000, 'a')}}};
  EXPECT_EQ(server.put(body.dump())->status, 413);
  EXPECT_EQ(server.put("{}")->status, 400);
}

TEST(HttpServerTest, ARequestThatDoesNotArriveIsGivenUp) {
  ServerOptions options;
  options.limits.request_time = 200ms;
  const RunningServer server(options);
  const Socket silent(server.server->port());
  silent.send("PUT /api HTT");
  const Socket dripping(server.server->port());
  dripping.send("PUT /api HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  const auto start = std::chrono::steady_clock::now();
  silent.rest();
  dripping.rest();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  EXPECT_TRUE(becomes_true([&] { return server.service.state().running == 0; }));
  EXPECT_EQ(server.client()->Get("/health")->status, 200);
}

TEST(HttpServerTest, ClientsThatVanishStopTheirRequests) {
  const RunningServer server;
  json streaming = kLong;
  streaming["stream"] = true;
  for (const json& body : {kLong, streaming}) {
    const Socket socket(server.server->port());
    socket.send(request_text("POST", "/v1/completions", body.dump()));
    EXPECT_TRUE(becomes_true([&] { return server.service.state().running > 0; }));
  }
  EXPECT_TRUE(becomes_true([&] {
    const EngineState state = server.service.state();
    return state.running + state.waiting + state.pages_owned == 0;
  }));
  const std::string metrics = server.client()->Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("finished_reason=\"abort\"}"));
  EXPECT_EQ(metrics.find("finished_reason=\"abort\"} 0\n"), std::string::npos);
}

TEST(HttpServerTest, AFullQueueIsAnsweredWith429) {
  ServiceOptions service;
  service.engine.max_rows = 1;
  service.max_queue = 2;
  const RunningServer server({}, service);
  const Socket busy(server.server->port());
  busy.send(request_text("POST", "/v1/completions", kLong.dump()));
  EXPECT_TRUE(becomes_true([&] { return server.service.state().waiting > 2; }));
  const httplib::Result result = server.post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(result->status, 429);
  EXPECT_EQ(result->get_header_value("Retry-After"), "1");
  EXPECT_EQ(json::parse(result->body)["error"]["type"], "rate_limit_error");
  const httplib::Result api = server.put("{\"prompts\":[\"a\"],\"tokens_to_generate\":1}");
  EXPECT_EQ(api->status, 429);
  EXPECT_EQ(api->get_header_value("Retry-After"), "1");
}

TEST(HttpServerTest, TooManyConnectionsAreAnsweredWith429) {
  ServerOptions options;
  options.limits.max_connections = 2;
  const RunningServer server(options);
  const Socket one(server.server->port());
  const Socket two(server.server->port());
  for (const Socket* socket : {&one, &two}) {
    socket->send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(socket->some(), StartsWith("HTTP/1.1 200"));
  }
  const Socket three(server.server->port());
  three.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = three.rest();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n"));
  EXPECT_THAT(answer, HasSubstr("too many connections"));
  // However many there are at a time.
  std::vector<std::unique_ptr<Socket>> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(std::make_unique<Socket>(server.server->port()));
  for (const auto& socket : crowd) socket->send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  for (const auto& socket : crowd) EXPECT_THAT(socket->rest(), StartsWith("HTTP/1.1 429 "));
}

// Half-open connections do not keep others out: the oldest of them gives up its place.
TEST(HttpServerTest, UnfinishedRequestsGiveUpTheirPlaces) {
  ServerOptions options;
  options.limits.max_connections = 4;
  const RunningServer server(options);
  const Socket busy(server.server->port());
  busy.send(request_text("POST", "/v1/completions", kLong.dump()));
  EXPECT_TRUE(becomes_true([&] { return server.service.state().running > 0; }));
  std::vector<std::unique_ptr<Socket>> attackers;
  for (const char* text :
       {"", "GET /hea", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        "Content-Length: 9\r\n\r\n"}) {
    for (int i = 0; i < 20; ++i) {
      attackers.push_back(std::make_unique<Socket>(server.server->port()));
      attackers.back()->send(text);
    }
    // A request that is just being read keeps its place for that moment.
    EXPECT_TRUE(becomes_true([&] { return server.client()->Get("/health")->status == 200; }))
        << text;
  }
  EXPECT_THAT(attackers.front()->rest(), StartsWith("HTTP/1.1 429 Too Many Requests\r\n"));
  EXPECT_THAT(busy.some(), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpServerTest, ARequestHasALimitOfTime) {
  const RunningServer server({}, {}, [](ServedModel& model) { model.request_time = 1ms; });
  EXPECT_EQ(server.post("/v1/completions", kLong)->status, 503);
  EXPECT_TRUE(becomes_true([&] { return server.service.state().pages_owned == 0; }));
}

TEST(HttpServerTest, DrainsBeforeItEnds) {
  auto server = std::make_unique<RunningServer>();
  const json body = {{"prompt", "a"}, {"max_tokens", 60}, {"n", 8}, {"ignore_eos", true}};
  auto answer =
      std::async(std::launch::async, [&] { return server->post("/v1/completions", body)->status; });
  EXPECT_TRUE(becomes_true([&] { return server->service.state().running > 0; }));
  server->service.stop(30s);
  EXPECT_EQ(server->client()->Get("/health")->status, 503);
  EXPECT_EQ(server->post("/v1/completions", {{"prompt", "a"}})->status, 503);
  EXPECT_EQ(answer.get(), 200);
}

// Many clients of every kind at once: each honest one gets its answer, and nothing is left behind.
TEST(HttpServerTest, ManyClientsAtOnce) {
  ServerOptions options;
  options.limits.request_time = 2000ms;
  ServiceOptions service;
  service.max_queue = 10'000;  // the rows of clients that vanish wait, too
  const RunningServer server(options, service);
  const int port = server.server->port();
  const json body = {{"prompt", "The"}, {"max_tokens", 10}, {"temperature", 0}};
  const std::string want =
      json::parse(server.post("/v1/completions", body)->body)["choices"][0]["text"];
  std::atomic<int> answered = 0;
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::async(std::launch::async, [&, i] {
      if (i % 4 == 1) {  // vanishes
        const Socket socket(port);
        socket.send(request_text("POST", "/v1/completions", kLong.dump()));
      } else if (i % 4 == 2) {  // rubbish
        std::mt19937 random(static_cast<uint32_t>(i));
        std::string bytes;
        for (int k = 0; k < 300; ++k) bytes += static_cast<char>(random() % 256);
        const Socket socket(port);
        socket.send(i % 8 == 2 ? bytes : request_text("PUT", "/api", bytes));
      } else if (i % 4 == 3) {  // never ends its request
        const Socket socket(port);
        socket.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{");
        socket.rest();
      } else {
        const httplib::Result result = server.post("/v1/completions", body);
        if (result && result->status == 200 &&
            json::parse(result->body)["choices"][0]["text"] == want) {
          ++answered;
        }
      }
    }));
  }
  for (auto& client : clients) client.get();
  EXPECT_EQ(answered, 16);
  EXPECT_TRUE(becomes_true([&] {
    const EngineState state = server.service.state();
    return state.running + state.waiting + state.pages_owned == 0;
  }));
}

}  // namespace
}  // namespace megatron::serve
