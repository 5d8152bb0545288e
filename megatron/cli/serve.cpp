#include "megatron/cli/serve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "megatron/cli/agreement.h"
#include "megatron/cli/json_lines.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/text_flags.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/inference/make_drafter.h"
#include "megatron/inference/model_step.h"
#include "megatron/run/collectively.h"
#include "megatron/serve/chat_template.h"
#include "megatron/serve/server.h"
#include "megatron/training/signals.h"

namespace megatron::cli {
namespace {

enum class EmbeddingPooling { kAuto, kMean, kLast, kCls };

struct ServeFlags {
  ModelFlags model;
  serve::ServerOptions server;
  serve::ServiceOptions service;
  int64_t port = 5000;
  std::string served_model_name;
  std::string chat_template = "auto";
  std::string tool_call_parser = "auto";
  int64_t request_timeout_s = 600;
  int64_t drain_timeout_s = 30;
  int64_t read_timeout_s = 30;
  int64_t max_tokens_to_oom = 12000;
  int64_t seed = 1234;
  bool no_prefix_reuse = false;
  DraftOptions drafts;
  EmbeddingPooling pooling = EmbeddingPooling::kAuto;
  bool strict_http_status = false;
  bool pads_beams = false;
  ArgMap of_requests;  // flags of Megatron-LM's server
};

FlagTable flags_of(ServeFlags& flags) {
  FlagTable table;
  add_model_flags(table, flags.model);
  table.group("server");
  table.add("--host", flags.server.host, "Address to listen on; 0.0.0.0 for all interfaces.");
  table.add("--port", flags.port, "Port to listen on; 0 selects a free one and prints it.");
  table.add_optional(
      "--api-key", flags.server.api_key,
      "Key that clients must send; better set MEGATRON_API_KEY, which ps does not show.");
  table.add("--allowed-hosts", flags.server.access.allowed_hosts,
            "Allowed values of the header Host without a key, besides this machine's names; "
            ".example.org for all subdomains, * for any.");
  table.add("--cors-allowed-origins", flags.server.access.allowed_origins,
            "Allowed origins of web pages: https://chat.example.org, or * for any.");
  table.add_optional("--served-model-name", flags.served_model_name,
                     "Name of the model for clients instead of the last part of --load.");
  table.add(
      "--chat-template", flags.chat_template,
      "Chat template: auto (the model's), plain, chatml, llama2, llama3, zephyr, or a file with "
      "a template in Jinja.");
  table.add(
      "--tool-call-parser", flags.tool_call_parser,
      "How calls of tools are read from responses: auto (by the chat template), none, hermes, "
      "llama3_json, mistral, deepseek_v3 or json.");
  table.add_choice("--embedding-pooling", flags.pooling,
                   {{"auto", EmbeddingPooling::kAuto},
                    {"mean", EmbeddingPooling::kMean},
                    {"last", EmbeddingPooling::kLast},
                    {"cls", EmbeddingPooling::kCls}},
                   "Embedding of a text: mean of the final hidden states, that of the last token, "
                   "or that of the first, [CLS]; auto: mean of a BERT, last token of a GPT.");
  table.add("--seed", flags.seed, "Seed of requests without one.");
  table.add_switch("--strict-http-status", flags.strict_http_status,
                   "/api: status 400 for all invalid requests; Megatron-LM sends 200 for most.");
  table.add_switch("--pad-beam-texts", flags.pads_beams,
                   "/api: pad the texts of beams, as Megatron-LM does.");
  table.add_switch("--log-requests", flags.server.logs_requests,
                   "Log requests of /api without no_log.");
  for (const auto& [name, type] :
       {std::pair{"--temperature", FlagType::kFloat}, std::pair{"--top-p", FlagType::kFloat},
        std::pair{"--top-k", FlagType::kInt}, std::pair{"--greedy", FlagType::kSwitch},
        std::pair{"--out-seq-length", FlagType::kInt}}) {
    table.add_entry(name, type, flags.of_requests, {}, "Requests say it.")
        .no_effect("each request says it");
  }
  table.group("limits");
  table.add("--max-running-requests", flags.service.engine.max_rows,
            "Maximum texts in a batch; others are queued.");
  table.add("--max-step-tokens", flags.service.engine.max_step_tokens,
            "Maximum tokens of one forward pass; longer prompts are split (chunked prefill).");
  table.add("--page-tokens", flags.service.engine.page_tokens, "Tokens per page of the KV cache.");
  table.add("--cache-tokens", flags.service.engine.cache_tokens,
            "Capacity of the KV cache in tokens, and of the cache of encoded prompts of a T5; 0: "
            "four texts of the model's length.");
  add_kv_cache_dtype(table, flags.model.kv_cache);
  table.add_switch("--no-prefix-reuse", flags.no_prefix_reuse, "Disable the prefix cache.");
  add_draft_flags(table, flags.drafts);
  table.add("--max-queue", flags.service.max_queue, "Maximum queued requests; others get 429.");
  table.add("--max-connections", flags.server.limits.max_connections,
            "Maximum connections; others get 429.");
  table.add("--max-body-bytes", flags.server.limits.max_body_bytes,
            "Maximum size of a request's body.");
  table.add("--max-request-memory", flags.server.limits.max_request_memory,
            "Memory in bytes for the bodies of all concurrent requests, 8 per byte of a body; "
            "others get 429. 0: 16 times --max-body-bytes.");
  table.add("--max-tokens-to-oom", flags.max_tokens_to_oom,
            "/api: maximum tokens of a request, including padding of prompts.");
  table.add("--read-timeout", flags.read_timeout_s,
            "Time-out for receiving a request, in seconds.");
  table.add("--request-timeout", flags.request_timeout_s,
            "Time-out for completing a request, in seconds; 0: none.");
  table.add("--drain-timeout", flags.drain_timeout_s,
            "Seconds for running requests to finish after SIGTERM.");
  return table;
}

std::vector<std::string> problems(const ServeFlags& flags) {
  std::vector<std::string> found;
  const auto at_least = [&](const char* flag, int64_t value, int64_t least) {
    if (value < least) found.push_back(fmt::format("{} {} must be {} or more", flag, value, least));
  };
  if (flags.port < 0 || flags.port > 65535) {
    found.push_back(fmt::format("--port {} must be between 0 and 65535", flags.port));
  }
  at_least("--max-running-requests", flags.service.engine.max_rows, 1);
  at_least("--max-step-tokens", flags.service.engine.max_step_tokens, 1);
  at_least("--page-tokens", flags.service.engine.page_tokens, 1);
  at_least("--cache-tokens", flags.service.engine.cache_tokens, 0);
  at_least("--max-queue", flags.service.max_queue, 1);
  at_least("--max-connections", flags.server.limits.max_connections, 1);
  at_least("--max-body-bytes", flags.server.limits.max_body_bytes, 1);
  at_least("--max-request-memory", flags.server.limits.max_request_memory, 0);
  at_least("--max-tokens-to-oom", flags.max_tokens_to_oom, 1);
  at_least("--read-timeout", flags.read_timeout_s, 1);
  at_least("--request-timeout", flags.request_timeout_s, 0);
  at_least("--drain-timeout", flags.drain_timeout_s, 0);
  for (std::string& problem : cli::problems(flags.drafts)) found.push_back(std::move(problem));
  if (flags.tool_call_parser != "auto" && !serve::tool_call_format_of(flags.tool_call_parser)) {
    found.push_back(fmt::format("--tool-call-parser {} is not known; use auto, none, {}",
                                flags.tool_call_parser,
                                fmt::join(serve::known_tool_call_parsers(), ", ")));
  }
  const std::vector<std::string> known = serve::known_chat_templates();
  if (flags.chat_template != "auto" &&
      std::find(known.begin(), known.end(), flags.chat_template) == known.end() &&
      !std::filesystem::is_regular_file(flags.chat_template)) {
    found.push_back(fmt::format("--chat-template {} is not known; use auto, {} or a file",
                                flags.chat_template, fmt::join(known, ", ")));
  }
  return found;
}

std::string name_of_model(const ServeFlags& flags) {
  if (!flags.served_model_name.empty()) return flags.served_model_name;
  std::filesystem::path path = std::filesystem::absolute(flags.model.load).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

// Tells the service when a signal has come. Its thread ends with it.
class StopOnSignal {
 public:
  StopOnSignal(serve::Service& service, std::chrono::seconds drain)
      : watcher_([this, &service, drain] {
          while (!is_over_ && ExitSignals::received() == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
          if (!is_over_) service.stop(drain);
        }) {}
  ~StopOnSignal() {
    is_over_ = true;
    watcher_.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::thread watcher_;
};

// The given one, or that of the folder of the tokenizer, or else of the model.
serve::ChatTemplate chat_template(const ServeFlags& flags, const Tokenizer& tokenizer) {
  namespace fs = std::filesystem;
  if (flags.chat_template != "auto") {
    const std::vector<std::string> known = serve::known_chat_templates();
    const bool is_known = std::find(known.begin(), known.end(), flags.chat_template) != known.end();
    return is_known ? serve::ChatTemplate::built_in(flags.chat_template)
                    : serve::ChatTemplate::of_file(flags.chat_template, tokenizer);
  }
  const fs::path source = tokenizer.source();
  const fs::path folder = fs::is_directory(source) ? source : source.parent_path();
  for (const fs::path& place : {folder, fs::path(flags.model.load)}) {
    if (place.empty()) continue;
    if (auto found = serve::ChatTemplate::of_folder(place, tokenizer)) return std::move(*found);
  }
  return serve::ChatTemplate::built_in("plain");
}

Pooling pooling_of(EmbeddingPooling pooling, ModelKind kind) {
  switch (pooling) {
    case EmbeddingPooling::kMean:
      return Pooling::kMean;
    case EmbeddingPooling::kLast:
      return Pooling::kLast;
    case EmbeddingPooling::kCls:
      return Pooling::kFirst;
    case EmbeddingPooling::kAuto:
      break;
  }
  return is_encoder_only(kind) ? Pooling::kMean : Pooling::kLast;
}

// Throws ConfigError for flags that the model cannot follow.
void expect_flags_for(const ServeFlags& flags, ModelKind kind) {
  if (flags.pooling != EmbeddingPooling::kAuto && is_encoder_decoder(kind)) {
    throw ConfigError(
        "--embedding-pooling is for a GPT or a BERT, and the model is a T5; leave it out");
  }
  if (flags.pooling == EmbeddingPooling::kCls && !is_encoder_only(kind)) {
    throw ConfigError(fmt::format(
        "--embedding-pooling cls is for a BERT, whose first token is [CLS], and the model is a {}; "
        "use mean or last",
        name_of(kind)));
  }
}

// State of rank 0 besides its part of the model.
struct FrontEnd {
  FrontEnd(const ServeFlags& flags, const LoadedModel& loaded, serve::Service& service)
      : served{.service = service,
               .tokenizer = loaded.required_tokenizer(),
               .name = name_of_model(flags),
               .vocab_size = loaded.vocab_size,
               .max_positions = std::min(max_positions(service.model().config()),
                                         service.state().pages * flags.service.engine.page_tokens),
               .chat_template = chat_template(flags, loaded.required_tokenizer()),
               .request_time = std::chrono::seconds(flags.request_timeout_s),
               .max_tokens_to_oom = flags.max_tokens_to_oom,
               .strict_http_status = flags.strict_http_status,
               .pads_beams = flags.pads_beams,
               .seed = static_cast<uint64_t>(flags.seed),
               .end_tokens = loaded.end_tokens,
               .decoder_start = is_encoder_decoder(loaded.kind)
                                    ? std::optional(loaded.required_decoder_start())
                                    : std::nullopt,
               .pooling = pooling_of(flags.pooling, loaded.kind),
               .tool_calls = serve::tool_call_format_of(flags.tool_call_parser),
               .sampling = serve::sampling_of_folder(flags.model.load)},
        server(served, flags.server) {}

  serve::ServedModel served;
  serve::Server server;
};

// Rank 0 begins to listen; what it cannot do, all ranks throw alike.
std::unique_ptr<FrontEnd> started(const ServeFlags& flags, const LoadedModel& loaded,
                                  serve::Service& service, const comm::Group& world) {
  std::unique_ptr<FrontEnd> front;
  std::string problem;
  if (world.rank() == 0) {
    try {
      front = std::make_unique<FrontEnd>(flags, loaded, service);
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = shared(problem, world).get<std::string>();
  if (!problem.empty()) throw CommonConfigError(problem);
  return front;
}

}  // namespace

int serve_model(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  ServeFlags flags;
  FlagTable table = flags_of(flags);
  const CommonCommand command = {.usage = "megatron serve --load DIR [flags]",
                                 .takes_training_words = true,
                                 .problems = [&] { return problems(flags); }};
  if (!parse_common_flags(table, command, words, world)) return 0;
  flags.server.port = static_cast<int>(flags.port);
  flags.server.limits.request_time = std::chrono::seconds(flags.read_timeout_s);
  flags.service.engine.reuse_prefixes = !flags.no_prefix_reuse;
  if (const char* key = std::getenv("MEGATRON_API_KEY");
      flags.server.api_key.empty() && key != nullptr) {
    flags.server.api_key = key;
  }

  const ExitSignals signals;  // on every rank: rank 0 tells the others when to end
  const LoadedModel loaded = load_model(flags.model, world, any_kind);
  expect_flags_for(flags, loaded.kind);
  warn_of_ineffective(flags.drafts);
  const auto drafting = load_draft_model(flags.drafts, flags.model, world);
  flags.service.engine.drafter = collectively(
      [&] { return make_drafter(flags.drafts, loaded.inference(), flags.service.engine); });
  serve::Service service(loaded.inference(), world, flags.service);
  const std::unique_ptr<FrontEnd> front = started(flags, loaded, service, world);
  std::optional<StopOnSignal> watch;
  if (front != nullptr) {
    print_line(fmt::format("serving {} at http://{}:{} (chat template {})", front->served.name,
                           flags.server.host, front->server.port(),
                           front->served.chat_template.name()));
    watch.emplace(service, std::chrono::seconds(flags.drain_timeout_s));
  }
  service.run();
  return 0;
}

}  // namespace megatron::cli
