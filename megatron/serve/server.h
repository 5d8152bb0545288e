#pragma once

#include <memory>
#include <string>

#include "megatron/serve/http_server.h"
#include "megatron/serve/served_model.h"
#include "megatron/serve/web_access.h"

namespace megatron::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 5000;
  std::string api_key;  // empty: everybody may ask
  HttpLimits limits = {};
  // Checked where there is no key; `host` in it is that above.
  WebAccess access = {};
  bool logs_requests = false;  // a line for each request of /api, unless it says no_log
};

// The HTTP interfaces of a model: PUT /api as Megatron-LM, /v1/ as OpenAI, /tokenize, /detokenize,
// /health, /metrics, and a page for people at /. It answers from construction to destruction; the
// service runs elsewhere. docs/serving.md describes all of them.
class Server {
 public:
  // Throws ConfigError if it cannot listen.
  Server(ServedModel& model, const ServerOptions& options);
  // Waits for the answers that are under way.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }

 private:
  struct Routes;
  std::unique_ptr<Routes> routes_;
  int port_ = 0;
};

}  // namespace megatron::serve
