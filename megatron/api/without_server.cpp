#include "megatron/core/parts.h"
#include "megatron/server.h"

namespace megatron::api {

struct Server::State {
  std::string name;
};

Server::Server(const Model&, const ServerOptions&) { refuse_missing("the server", "MG_SERVER"); }
Server::~Server() = default;
int Server::port() const { return 0; }
const std::string& Server::name() const { return state_->name; }

}  // namespace megatron::api
