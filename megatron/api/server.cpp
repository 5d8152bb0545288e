#include "megatron/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/run/loaded_model.h"
#include "megatron/serve/chat_template.h"
#include "megatron/serve/server.h"

namespace megatron::api {
namespace {

constexpr std::chrono::seconds kDrain(30);

const LoadedModel& servable(const LoadedModel& loaded) {
  if (!has_decoder(loaded.kind)) {
    throw Unsupported(
        fmt::format("a server continues texts, and a {} has no decoder", name_of(loaded.kind)));
  }
  if (loaded.parallel.model.size() > 1) {
    throw Unsupported("a server in this process has a whole model; use megatron serve");
  }
  return loaded;
}

serve::ServiceOptions service_options(const ServerOptions& options) {
  if (options.max_running_requests < 1 || options.cache_tokens < 0) {
    throw ConfigError("max_running_requests must be 1 or more, and cache_tokens 0 or more");
  }
  serve::ServiceOptions service;
  service.engine.max_rows = options.max_running_requests;
  service.engine.cache_tokens = options.cache_tokens;
  return service;
}

// The chat template of the tokenizer's folder.
serve::ChatTemplate template_of(const Tokenizer& tokenizer) {
  const std::filesystem::path source = tokenizer.source();
  const auto folder = std::filesystem::is_directory(source) ? source : source.parent_path();
  if (!folder.empty()) {
    if (auto found = serve::ChatTemplate::of_folder(folder, tokenizer)) return std::move(*found);
  }
  return serve::ChatTemplate::built_in("plain");
}

}  // namespace

struct Server::State {
  State(const LoadedModel& loaded, const std::string& name, const ServerOptions& options)
      : service(loaded.inference(), {}, service_options(options)),
        served{.service = service,
               .tokenizer = loaded.required_tokenizer(),
               .name = name,
               .vocab_size = loaded.vocab_size,
               .max_positions =
                   std::min(max_positions(service.model().config()),
                            service.state().pages * serve::ServiceOptions().engine.page_tokens),
               .chat_template = template_of(loaded.required_tokenizer()),
               .end_tokens = loaded.end_tokens,
               .decoder_start = is_encoder_decoder(loaded.kind)
                                    ? std::optional(loaded.required_decoder_start())
                                    : std::nullopt},
        server(served, {.host = options.host,
                        .port = options.port,
                        .api_key = options.api_key,
                        .limits = {},
                        .access = {}}),
        thread([this] {
          try {
            service.run();
          } catch (const std::exception& error) {  // clients learn of it
            print_error(error.what());
          }
        }) {}
  ~State() {
    service.stop(kDrain);
    thread.join();
  }

  serve::Service service;
  serve::ServedModel served;
  serve::Server server;
  std::thread thread;
};

Server::Server(const Model& model, const ServerOptions& options) {
  const std::string name = options.name.empty()
                               ? std::filesystem::path(model.directory()).filename().string()
                               : options.name;
  state_ = std::make_unique<State>(servable(model.loaded()), name, options);
}
Server::~Server() = default;

int Server::port() const { return state_->server.port(); }
const std::string& Server::name() const { return state_->served.name; }

}  // namespace megatron::api
