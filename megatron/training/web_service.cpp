#include "megatron/training/web_service.h"

#include <fmt/format.h>
#include <httplib.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/json.h"
#include "megatron/core/printable.h"
#include "megatron/training/web_address.h"

namespace megatron {

struct WebService::Client {
  httplib::Client http;
  std::string prefix;  // of all paths
};

namespace {

constexpr JsonLimits kAnswerLimits = {.max_values = 1 << 20, .max_bytes = 1 << 24};

nlohmann::json answer_of(const httplib::Result& result, const std::string& address) {
  if (!result) {
    throw WebError(fmt::format("{}: {}", address, httplib::to_string(result.error())), true);
  }
  const int status = result->status;
  if (status < 200 || status > 299) {
    constexpr int kTimeout = 408;
    constexpr int kTooMany = 429;
    throw WebError(
        fmt::format("{}: answered {} {}", address, status, printable(result->body.substr(0, 300))),
        status >= 500 || status == kTimeout || status == kTooMany, result->body);
  }
  if (result->body.empty()) return nlohmann::json::object();
  nlohmann::json answer = try_parse_json(result->body, kAnswerLimits);
  if (!answer.is_object()) throw WebError(address + ": the answer is not a JSON object", false);
  return answer;
}

}  // namespace

WebService::WebService(const std::string& url, const WebLogin& login) {
  const std::optional<WebAddress> address = web_address_of(url);
  if (!address) {
    throw WebError(printable(url) + " is not the address of a web service; write https://HOST:PORT",
                   false);
  }
  url_ = address->origin + address->prefix;
  client_ = std::make_unique<Client>(Client{httplib::Client(address->origin), address->prefix});
  httplib::Client& http = client_->http;
  http.set_connection_timeout(std::chrono::seconds(5));
  http.set_read_timeout(std::chrono::seconds(15));
  http.set_write_timeout(std::chrono::seconds(15));
  http.set_keep_alive(true);
  http.set_tcp_nodelay(true);  // head and body are two writes
  if (!login.token.empty()) {
    http.set_bearer_token_auth(login.token);
  } else if (!login.user.empty()) {
    http.set_basic_auth(login.user, login.password);
  }
}

WebService::~WebService() = default;

nlohmann::json WebService::post(const std::string& path, const nlohmann::json& body) {
  const httplib::Result result =
      client_->http.Post(client_->prefix + path, dump_json(body), "application/json");
  return answer_of(result, url_ + path);
}

nlohmann::json WebService::get(const std::string& path, const std::string& name,
                               const std::string& value) {
  const httplib::Result result =
      client_->http.Get(client_->prefix + path, {{name, value}}, httplib::Headers());
  return answer_of(result, url_ + path);
}

}  // namespace megatron
