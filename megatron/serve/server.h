#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/http/http_server.h"
#include "megatron/http/web_access.h"
#include "megatron/serve/served_model.h"

namespace megatron::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 5000;
  std::string api_key;  // empty: no authentication
  HttpLimits limits = {};
  // Checked if there is no key; `access.host` equals `host`.
  WebAccess access = {};
  bool logs_requests = false;  // logs each request of /api without no_log
};

// The HTTP interfaces of a model: PUT /api as Megatron-LM, /v1/ as OpenAI, /tokenize, /detokenize,
// /health, /metrics, a web page at /, and at /docs and /openapi.json their description
// (docs/serving.md). Serves from construction to destruction; another thread runs the Service.
class Server {
 public:
  // Throws ConfigError if it cannot listen.
  Server(ServedModel& model, const ServerOptions& options);
  // Waits for responses in progress.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  const std::vector<std::string>& routes() const;  // "GET /health"

 private:
  struct Routes;
  std::unique_ptr<Routes> routes_;
  int port_ = 0;
};

}  // namespace megatron::serve
