#include "megatron/http/web_access.h"

#include <gmock/gmock.h>

#include "megatron/core/host_name.h"
#include "tests/serve/plain_socket.h"
#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

bool is_let_in(const WebAccess& access, std::string_view host, std::string_view origin = "") {
  return !access.problem(host, origin).has_value();
}

TEST(WebAccessTest, HostIsANameOfThisMachine) {
  const WebAccess local;
  for (const std::string host :
       {"", "127.0.0.1", "127.0.0.1:5000", "127.8.9.1", "localhost", "LocalHost:5000", "localhost.",
        "a.localhost", "[::1]", "[::1]:5000", "megatron", "megatron:5000"}) {
    EXPECT_TRUE(is_let_in(local, host)) << host;
  }
  EXPECT_TRUE(is_let_in(local, host_name()));
  for (const std::string host :
       {"evil.example", "evil.example:5000", "127.0.0.1.evil.example", "localhost.evil.example",
        "10.1.2.3", "[2001:db8::1]:5000", "evillocalhost.example", "0.0.0.0"}) {
    EXPECT_FALSE(is_let_in(local, host)) << host;
  }
  EXPECT_EQ(
      *local.problem("evil.example:5000", ""),
      "the Host evil.example:5000 is not a name of this server; if it should be, start the server "
      "with --allowed-hosts evil.example, or with --api-key");
}

TEST(WebAccessTest, AddressesOfAServerOnAllNetworks) {
  const WebAccess open = {.host = "0.0.0.0"};
  EXPECT_TRUE(is_let_in(open, "10.1.2.3:5000"));
  EXPECT_TRUE(is_let_in(open, "[2001:db8::1]:5000"));
  EXPECT_FALSE(is_let_in(open, "evil.example"));
  const WebAccess one = {.host = "10.1.2.3"};
  EXPECT_TRUE(is_let_in(one, "10.1.2.3:5000"));
  EXPECT_FALSE(is_let_in(one, "10.1.2.4:5000"));
}

TEST(WebAccessTest, AllowedHosts) {
  const WebAccess access = {.allowed_hosts = {"GPU.example.org", ".corp.example"}};
  EXPECT_TRUE(is_let_in(access, "gpu.example.org:5000"));
  EXPECT_TRUE(is_let_in(access, "a.b.corp.example"));
  EXPECT_TRUE(is_let_in(access, "corp.example"));
  EXPECT_FALSE(is_let_in(access, "evilcorp.example"));
  EXPECT_FALSE(is_let_in(access, "example.org"));
  EXPECT_TRUE(is_let_in({.allowed_hosts = {"*"}}, "any.example"));
}

TEST(WebAccessTest, OriginIsTheServerItself) {
  const WebAccess local;
  EXPECT_TRUE(is_let_in(local, "127.0.0.1:5000", "http://127.0.0.1:5000"));
  EXPECT_TRUE(is_let_in(local, "localhost", "http://localhost:80"));
  EXPECT_TRUE(is_let_in(local, "localhost:443", "https://localhost"));
  for (const std::string origin :
       {"http://evil.example", "null", "http://127.0.0.1:5001", "http://localhost:5000",
        "file://127.0.0.1:5000", "http://127.0.0.1:5000.evil.example"}) {
    EXPECT_FALSE(is_let_in(local, "127.0.0.1:5000", origin)) << origin;
  }
  // A name that leads a browser here: the page is of the same origin, but the name is not ours.
  EXPECT_FALSE(is_let_in(local, "evil.example:5000", "http://evil.example:5000"));
  EXPECT_FALSE(is_let_in(local, "evil:5000", "http://evil:5000"));
}

TEST(WebAccessTest, AllowedOrigins) {
  const WebAccess access = {.allowed_origins = {"https://chat.example.org"}};
  EXPECT_TRUE(is_let_in(access, "127.0.0.1:5000", "https://Chat.example.org"));
  EXPECT_FALSE(is_let_in(access, "127.0.0.1:5000", "http://chat.example.org"));
  EXPECT_FALSE(is_let_in(access, "127.0.0.1:5000", "null"));
  EXPECT_TRUE(is_let_in({.allowed_origins = {"*"}}, "127.0.0.1:5000", "null"));
}

std::string answer(const RunningServer& server, const std::string& head,
                   const std::string& body = "") {
  const PlainSocket socket(server.server->port());
  socket.send(head + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  return socket.rest();
}

TEST(WebAccessTest, PagesOfStrangersReachNothing) {
  const RunningServer server;
  const std::string body = "{\"prompt\":\"a\",\"max_tokens\":1}";
  const std::string post = "POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\n";
  EXPECT_THAT(answer(server, post + "Host: localhost", body), StartsWith("HTTP/1.1 200"));
  for (const std::string headers :
       {"Host: localhost\r\nOrigin: http://evil.example", "Host: evil.example",
        "Host: evil.example\r\nOrigin: http://evil.example", "Host: localhost\r\nOrigin: null",
        "Host: localhost\r\nHost: evil.example"}) {
    const std::string refused = answer(server, post + headers, body);
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 403")) << headers;
    EXPECT_THAT(refused, Not(HasSubstr("Access-Control"))) << headers;
    EXPECT_THAT(answer(server, "GET /metrics HTTP/1.1\r\n" + headers), StartsWith("HTTP/1.1 403"));
  }
  EXPECT_THAT(answer(server,
                     "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://e.x\r\n"
                     "Access-Control-Request-Method: POST"),
              StartsWith("HTTP/1.1 403"));
  // Health checks may use any name.
  EXPECT_THAT(answer(server, "GET /health HTTP/1.1\r\nHost: 10.1.2.3"), StartsWith("HTTP/1.1 200"));
  // Requests with the key are trusted.
  const RunningServer guarded({.api_key = "secret"});
  EXPECT_THAT(answer(guarded,
                     post + "Host: gpu.example\r\nOrigin: http://a.example\r\n"
                            "Authorization: Bearer secret",
                     body),
              StartsWith("HTTP/1.1 200"));
}

TEST(WebAccessTest, AllowedPagesAreToldSo) {
  for (const std::string key : {"", "secret"}) {
    const RunningServer server(
        {.api_key = key, .access = {.allowed_origins = {"http://a.example"}}});
    const std::string page = "Host: localhost\r\nOrigin: http://a.example";
    const std::string preflight =
        answer(server, "OPTIONS /v1/completions HTTP/1.1\r\n" + page +
                           "\r\nAccess-Control-Request-Method: POST\r\n"
                           "Access-Control-Request-Headers: authorization");
    EXPECT_THAT(preflight, StartsWith("HTTP/1.1 204"));
    EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Origin: http://a.example\r\n"));
    EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Headers: Authorization, Content-Type"));
    const std::string models =
        answer(server, "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secret\r\n" + page);
    EXPECT_THAT(models, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(models, HasSubstr("Access-Control-Allow-Origin: http://a.example\r\n"));
    EXPECT_THAT(models, HasSubstr("Vary: Origin\r\n"));
    const std::string other = answer(server,
                                     "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secret\r\n"
                                     "Host: localhost\r\nOrigin: http://b.example");
    EXPECT_THAT(other, StartsWith(key.empty() ? "HTTP/1.1 403" : "HTTP/1.1 200"));
    EXPECT_THAT(other, Not(HasSubstr("Access-Control")));
  }
}

}  // namespace
}  // namespace megatron::serve
