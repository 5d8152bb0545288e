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

// The sizes of a GPT or BERT with the rows of a tokenizer and 64 positions, without dropout.
inline TransformerConfig tiny_config(const Tokenizer& tokenizer) {
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
  return config;
}

// A GPT of random weights.
inline std::unique_ptr<GptModel> tiny_model(const Tokenizer& tokenizer) {
  auto model = std::make_unique<GptModel>(resolved(tiny_config(tokenizer)), Stream{});
  initialize(*model, 5);
  return model;
}

// A T5 with relative positions, otherwise as tiny_model().
inline std::unique_ptr<T5Model> tiny_t5(const Tokenizer& tokenizer) {
  TransformerConfig config;
  config.kind = ModelKind::kT5;
  config.num_layers = 2;
  config.decoder_num_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.seq_length = 64;
  config.decoder_seq_length = 64;
  config.position_embedding_type = PositionEmbedding::kRelative;
  config.true_vocab_size = tokenizer.vocab_size();
  config.padded_vocab_size = (tokenizer.vocab_size() + 15) / 16 * 16;
  config.init_method_std = 0.2;
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  auto model = std::make_unique<T5Model>(resolved(config), Stream{});
  initialize(*model, 5);
  return model;
}

// A server of a model on a free port of this machine, and an engine thread.
template <class Model>
struct ServerOf {
  using MakeModel = std::unique_ptr<Model> (*)(const Tokenizer& tokenizer);

  ServerOf(MakeModel make_model, ServerOptions server_options, ServiceOptions service_options,
           const std::function<void(ServedModel&)>& change)
      : model(make_model(*tokenizer)), service({*model}, {}, service_options) {
    if (change) change(served);
    server_options.port = 0;
    server = std::make_unique<Server>(served, server_options);
    engine = std::thread([this] { service.run(); });
  }
  ~ServerOf() {
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
  // The continuation by the model without the server.
  Generation generated(Request request) const {
    request.vocab_size = tokenizer->vocab_size();
    return generate({*model}, std::span<const Request>(&request, 1)).front();
  }

  std::unique_ptr<Tokenizer> tokenizer = tiny_tokenizer();
  std::unique_ptr<Model> model;
  Service service;
  ServedModel served{.service = service,
                     .tokenizer = *tokenizer,
                     .name = "tiny",
                     .vocab_size = tokenizer->vocab_size(),
                     .max_positions = 64,
                     .chat_template = ChatTemplate::built_in("plain"),
                     .end_tokens = {tokenizer->eod()}};
  std::unique_ptr<Server> server;
  std::thread engine;
};

// A server of the tiny GPT.
struct RunningServer : ServerOf<GptModel> {
  explicit RunningServer(ServerOptions server_options = {}, ServiceOptions service_options = {},
                         const std::function<void(ServedModel&)>& change = nullptr)
      : ServerOf(tiny_model, std::move(server_options), service_options, change) {}
};

// The objects of a stream, which ends with [DONE].
inline std::vector<nlohmann::json> chunks_of(std::string stream) {
  const std::string end_mark = "data: [DONE]\n\n";
  EXPECT_TRUE(stream.ends_with(end_mark)) << stream;
  if (stream.ends_with(end_mark)) stream.erase(stream.size() - end_mark.size());
  std::vector<nlohmann::json> chunks;
  for (size_t end = 0; (end = stream.find("\n\n")) != std::string::npos; stream.erase(0, end + 2)) {
    EXPECT_TRUE(stream.starts_with("data: ")) << stream;
    chunks.push_back(nlohmann::json::parse(stream.substr(6, end - 6)));
  }
  return chunks;
}

}  // namespace megatron::serve
