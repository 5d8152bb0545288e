#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "megatron/inference/generate.h"
#include "megatron/serve/server.h"
#include "megatron/transformer/init.h"
#include "tests/support/source_path.h"

namespace megatron::serve {

inline std::unique_ptr<Tokenizer> tiny_tokenizer() {
  const std::filesystem::path data = source_path("tests/golden/megatron/data");
  return make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                         .vocab_file = (data / "vocab.json").string(),
                         .merge_file = (data / "merges.txt").string()});
}

// A GPT of random weights with the rows of a tokenizer and 64 positions.
inline std::unique_ptr<GptModel> tiny_model(const Tokenizer& tokenizer) {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.seq_length = 64;
  config.max_position_embeddings = 64;
  config.true_vocab_size = tokenizer.vocab_size();
  config.padded_vocab_size = (tokenizer.vocab_size() + 15) / 16 * 16;
  config.init_method_std = 0.2;
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  auto model = std::make_unique<GptModel>(resolved(config), Stream{});
  initialize(*model, 5);
  return model;
}

// A server of the tiny model on a free port of this machine, and an engine thread.
struct RunningServer {
  explicit RunningServer(ServerOptions server_options = {}, ServiceOptions service_options = {},
                         const std::function<void(ServedModel&)>& change = nullptr)
      : service({*model}, {}, service_options) {
    if (change) change(served);
    server_options.port = 0;
    server = std::make_unique<Server>(served, server_options);
    engine = std::thread([this] { service.run(); });
  }
  ~RunningServer() {
    service.stop(std::chrono::seconds(20));
    engine.join();
  }

  std::unique_ptr<httplib::Client> client() const {
    auto result = std::make_unique<httplib::Client>("127.0.0.1", server->port());
    result->set_read_timeout(60);
    return result;
  }
  httplib::Result put(const std::string& body) const {
    return client()->Put("/api", body, "application/json");
  }
  httplib::Result post(const std::string& path, const nlohmann::json& body) const {
    return client()->Post(path, body.dump(), "application/json");
  }
  // What the model continues a text with, by itself.
  Generation generated(Request request) const {
    request.vocab_size = tokenizer->vocab_size();
    return generate({*model}, std::span<const Request>(&request, 1)).front();
  }

  std::unique_ptr<Tokenizer> tokenizer = tiny_tokenizer();
  std::unique_ptr<GptModel> model = tiny_model(*tokenizer);
  Service service;
  ServedModel served{.service = service,
                     .tokenizer = *tokenizer,
                     .name = "tiny",
                     .vocab_size = tokenizer->vocab_size(),
                     .max_positions = 64,
                     .chat_template = "plain"};
  std::unique_ptr<Server> server;
  std::thread engine;
};

}  // namespace megatron::serve
