#pragma once

#include <memory>
#include <string>

#include "megatron/model.h"

namespace megatron::api {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;         // 0: any free one
  std::string api_key;  // empty: no authentication
  std::string name;     // of the model for clients; empty: the last part of its directory
  int64_t max_running_requests = 64;
  int64_t cache_tokens = 0;  // of keys and values; 0: four texts as long as the model's positions
};

// The HTTP interfaces of `megatron serve` in this process (docs/serving.md): threads of it serve
// from construction to destruction. Nothing else uses the model meanwhile.
class Server {
 public:
  // Throws ConfigError if it cannot listen, or if the model has no tokenizer; Unsupported if this
  // build has no server, for a BERT, and if other ranks have a part of the model. The model must
  // outlive it.
  Server(const Model& model, const ServerOptions& options);
  // Lets requests finish, for at most 30 seconds.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  const std::string& name() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::api
