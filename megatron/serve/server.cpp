#include "megatron/serve/server.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/core/printable.h"
#include "megatron/http/web_page.h"
#include "megatron/serve/docs_text.h"
#include "megatron/serve/megatron_api.h"
#include "megatron/serve/openai_answer.h"
#include "megatron/serve/openapi_text.h"
#include "megatron/serve/page_text.h"
#include "megatron/serve/request_body.h"
#include "megatron/serve/text_values.h"

namespace megatron::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr size_t kLoggedBytes = 16 << 10;  // of a request
// /tokenize may respond with an id for each byte: a number, a JSON value, and digits.
constexpr size_t kMaxTokenizedBytes = 2 << 20;

std::string dumped(const Json& value) { return dump_json(value); }

void set_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.status == 429) response.set_header("Retry-After", "1");
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(error.body(), kJson);
}

// Logs an internal error (500), which only the operator can repair.
ApiError logged(const httplib::Request& request, ApiError error) {
  if (error.status == 500) {
    warn(fmt::format("{} {}: 500, {}", shortened(request.method), shortened(request.path),
                     printable(error.what())));
  }
  return error;
}

// Converts an exception of a handler to an error response.
ApiError api_error_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const ApiError*>(&error)) return *known;
  if (dynamic_cast<const Overloaded*>(&error) != nullptr) {
    return ApiError(429, error.what(), "", "overloaded");
  }
  if (dynamic_cast<const Failed*>(&error) != nullptr) return ApiError(500, error.what());
  if (dynamic_cast<const Unavailable*>(&error) != nullptr) return ApiError(503, error.what());
  if (dynamic_cast<const ConfigError*>(&error) != nullptr ||
      dynamic_cast<const FormatError*>(&error) != nullptr) {
    return ApiError(400, error.what());
  }
  return ApiError(500, error.what());
}

// Constant-time comparison.
bool are_equal(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Runs a completion; passes every chunk of its stream to `send`, which returns false if the client
// has disconnected.
Outcome complete(const ServedModel& model, const Completion& completion, Ticket& ticket,
                 CompletionAnswer& answer, const std::function<bool(const Json&)>& send) {
  bool is_open = true;
  bool has_failed = false;
  const Outcome outcome =
      each_event(model, ticket, answer.num_open(), [&](const RequestEvent& event) {
        has_failed = event.progress.finish == Finish::kFailed;
        if (has_failed) return false;
        const auto chunk = answer.take(event);
        if (answer.is_over(event.index)) ticket.cancel(event.index);
        if (chunk && completion.stream) is_open = send(*chunk);
        return is_open && answer.num_open() > 0;
      });
  if (has_failed) throw ApiError(500, kNotANumber);
  if (outcome == Outcome::kTimeout) throw ApiError(503, "the request took too long");
  return is_open ? outcome : Outcome::kGone;
}

// A streamed completion. Lives as long as the response.
struct Streamed {
  Streamed(ServedModel& the_model, Completion the_completion, const httplib::Request& the_request)
      : model(the_model),
        request(the_request),
        completion(std::move(the_completion)),
        ticket(model.service.submit(requests_of(completion))),
        answer(model, completion) {}

  bool run(httplib::DataSink& sink) {
    const auto send = [&](const std::string& text) {
      const std::string frame = "data: " + text + "\n\n";
      return sink.write(frame.data(), frame.size());
    };
    const auto send_chunk = [&](const Json& chunk) { return send(dumped(chunk)); };
    try {
      bool is_open = true;
      for (const Json& chunk : answer.first_chunks()) is_open = is_open && send_chunk(chunk);
      if (!is_open) return false;
      if (complete(model, completion, *ticket, answer, send_chunk) == Outcome::kGone) return false;
      if (completion.include_usage) send_chunk(answer.usage_chunk());
    } catch (const std::exception& error) {
      std::string body = logged(request, api_error_of(error)).body();
      body.pop_back();
      send(body);
    }
    send("[DONE]");
    sink.done();
    return true;
  }

  ServedModel& model;
  const httplib::Request& request;  // lives longer than its response
  Completion completion;
  std::unique_ptr<Ticket> ticket;
  CompletionAnswer answer;
};

}  // namespace

struct Server::Routes {
  Routes(ServedModel& the_model, const ServerOptions& the_options)
      : model(the_model), options(the_options), http(the_options.limits) {
    options.access.host = options.host;
    http.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          const bool goes_on = !is_preflight(request, response) && is_allowed(request, response);
          const bool reads_body = request.method == "POST" || request.method == "PUT" ||
                                  request.method == "PATCH" || request.method == "DELETE";
          if (HttpServer::has_body(request) && !(goes_on && reads_body)) {
            HttpServer::close_after(response);
          }
          return goes_on ? httplib::Server::HandlerResponse::Unhandled
                         : httplib::Server::HandlerResponse::Handled;
        });
    http.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (response.body.empty()) set_missing(request, response);
    });
    http.set_exception_handler([](const httplib::Request& request, httplib::Response& response,
                                  const std::exception_ptr& thrown) {
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& error) {
        set_error(response, logged(request, api_error_of(error)));
      } catch (...) {
        set_error(response, logged(request, ApiError(500, "an unknown error")));
      }
    });
    add_api();
    add_openai();
    add_tokenizer();
    add_monitoring();
    add_pages();
  }

  // A CORS preflight request; answered for allowed origins.
  bool is_preflight(const httplib::Request& request, httplib::Response& response) const {
    const std::string origin = request.get_header_value("Origin");
    if (origin.empty() || !options.access.allows_origin(origin)) return false;
    response.set_header("Access-Control-Allow-Origin", origin);
    response.set_header("Vary", "Origin");
    if (request.method != "OPTIONS" || !request.has_header("Access-Control-Request-Method")) {
      return false;
    }
    response.status = 204;
    response.set_header("Access-Control-Allow-Methods", "GET, POST, PUT");
    response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response.set_header("Access-Control-Max-Age", "600");
    return true;
  }

  // /health is public; requests without a key must not come from a foreign page.
  bool is_allowed(const httplib::Request& request, httplib::Response& response) const {
    if (request.path == "/health" || request.path == "/v1/health") return true;
    if (options.api_key.empty()) {
      const std::optional<std::string> problem = access_problem(options.access, request);
      if (problem) set_error(response, ApiError(403, *problem, "", "not_allowed"));
      return !problem;
    }
    constexpr std::string_view kPublic[] = {"/", "/index.html", "/docs", "/openapi.json"};
    if (std::ranges::find(kPublic, request.path) != std::end(kPublic) ||
        are_equal(request.get_header_value("Authorization"), "Bearer " + options.api_key)) {
      return true;
    }
    set_error(response, ApiError(401,
                                 "the API key is missing or wrong; send the header "
                                 "Authorization: Bearer KEY",
                                 "", "invalid_api_key"));
    return false;
  }

  static void set_missing(const httplib::Request& request, httplib::Response& response) {
    if (HttpServer::is_out_of_memory()) {
      HttpServer::close_after(response);
      set_error(response, ApiError(429, kNoMemory, "", "overloaded"));
    } else if (response.status == 413) {
      HttpServer::close_after(response);
      set_error(response, ApiError(413, "the body is larger than --max-body-bytes allows"));
    } else if (response.status == 404) {
      set_error(response, ApiError(404, fmt::format("{} {} is not known", shortened(request.method),
                                                    shortened(request.path))));
    } else {
      set_error(response, ApiError(response.status > 0 ? response.status : 400,
                                   "the request is not understood"));
    }
  }

  // Adds a route, which openapi.json must describe.
  using Handler = httplib::Server::Handler;
  void get(const std::string& path, const Handler& handler) {
    paths.push_back("GET " + path);
    http.Get(path, handler);
  }
  void post(const std::string& path, const Handler& handler) {
    paths.push_back("POST " + path);
    http.Post(path, handler);
  }
  void put(const std::string& path, const Handler& handler) {
    paths.push_back("PUT " + path);
    http.Put(path, handler);
  }

  void add_api() {
    put("/api", [this](const httplib::Request& request, httplib::Response& response) {
      const Answer answer =
          megatron_api(model, request.body, request.get_header_value("Content-Type"));
      log(request);
      response.status = answer.status;
      if (answer.status == 429) response.set_header("Retry-After", "1");
      response.set_content(answer.body, kJson);
    });
    const auto refuse = [](const httplib::Request&, httplib::Response& response) {
      response.status = 405;
      response.set_header("Allow", "PUT");
      response.set_content("{\"message\":\"The method is not allowed for the requested URL.\"}\n",
                           kJson);
    };
    http.Get("/api", refuse);
    http.Post("/api", refuse);
    http.Patch("/api", refuse);
    http.Delete("/api", refuse);
    http.Options("/api", refuse);
  }

  void log(const httplib::Request& request) const {
    if (!options.logs_requests) return;
    std::string text;
    const auto turn = HttpServer::turn(request.body);
    try {
      const nlohmann::json body = parse_body(request.body);
      if (body.is_object() && body.value("no_log", nlohmann::json(false)) == true) return;
      text = shortened(dump_json(body), kLoggedBytes);
    } catch (const std::exception&) {  // its answer says what is wrong
    }
    print_line(fmt::format("request IP: {} {}", request.remote_addr, text));
  }

  void add_openai() {
    get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      const Json one = {{"id", model.name},
                        {"object", "model"},
                        {"created", 0},
                        {"owned_by", "megatron"},
                        {"max_model_len", model.max_positions}};
      response.set_content(dumped({{"object", "list"}, {"data", Json::array({one})}}), kJson);
    });
    for (const bool is_chat : {false, true}) {
      const auto handler = [this, is_chat](const httplib::Request& request,
                                           httplib::Response& response) {
        answer_completion(request, response, is_chat);
      };
      const std::string path = is_chat ? "/chat/completions" : "/completions";
      post(path, handler);
      post("/v1" + path, handler);
    }
    add_values("/embeddings", embedding_request_of, embedding_answer);
    add_values("/score", score_request_of, score_answer);
  }

  // An interface that reads a request and answers it when the engine has read its texts.
  template <class Request>
  void add_values(const std::string& path,
                  Request (*request_of)(const ServedModel& model, const std::string& body),
                  Json (*answer_of)(const ServedModel& model, const Request& request)) {
    const auto handler = [this, request_of, answer_of](const httplib::Request& request,
                                                       httplib::Response& response) {
      auto turn = HttpServer::turn(request.body);
      const Request wanted = request_of(model, request.body);
      if (turn) turn.unlock();
      HttpServer::give_memory_back();
      response.set_content(dumped(answer_of(model, wanted)), kJson);
    };
    post(path, handler);
    post("/v1" + path, handler);
  }

  void answer_completion(const httplib::Request& request, httplib::Response& response,
                         bool is_chat) {
    auto turn = HttpServer::turn(request.body);
    Completion completion = completion_of(model, request.body, is_chat);
    if (turn) turn.unlock();
    HttpServer::give_memory_back();
    if (!completion.stream) {
      const auto ticket = model.service.submit(requests_of(completion));
      CompletionAnswer answer(model, completion);
      complete(model, completion, *ticket, answer, nullptr);
      response.set_content(dumped(answer.whole()), kJson);
      return;
    }
    const auto streamed = std::make_shared<Streamed>(model, std::move(completion), request);
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream",
        [streamed](size_t, httplib::DataSink& sink) { return streamed->run(sink); });
  }

  void add_tokenizer() {
    post("/tokenize", [this](const httplib::Request& request, httplib::Response& response) {
      const auto turn = HttpServer::turn(request.body);
      const nlohmann::json body = object_of(request.body);
      const char* const name = body.contains("prompt") ? "prompt" : "content";
      if (!body.contains(name) || !body[name].is_string()) {
        throw ApiError(400, "prompt must be a string", "prompt");
      }
      const std::string& text = body[name].get_ref<const std::string&>();
      if (text.size() > kMaxTokenizedBytes) {
        throw ApiError(413,
                       fmt::format("prompt has {} bytes; /tokenize takes at most {}, send parts",
                                   text.size(), kMaxTokenizedBytes),
                       "prompt");
      }
      const std::vector<int32_t> ids = model.tokenizer.encode(text);
      response.set_content(
          dumped({{"count", ids.size()}, {"max_model_len", model.max_positions}, {"tokens", ids}}),
          kJson);
    });
    post("/detokenize", [this](const httplib::Request& request, httplib::Response& response) {
      const auto turn = HttpServer::turn(request.body);
      const nlohmann::json body = object_of(request.body);
      const auto tokens = body.find("tokens");
      std::vector<int32_t> ids;
      bool are_known = tokens != body.end() && tokens->is_array();
      for (size_t i = 0; are_known && i < tokens->size(); ++i) {
        const nlohmann::json& id = (*tokens)[i];
        are_known = id.is_number_integer() && id >= 0 && id < model.vocab_size;
        if (are_known) ids.push_back(id.get<int32_t>());
      }
      if (!are_known) throw ApiError(400, "tokens must be a list of the model's ids", "tokens");
      response.set_content(dumped({{"prompt", model.tokenizer.decode(ids)}}), kJson);
    });
  }

  void add_monitoring() {
    const auto health = [this](const httplib::Request&, httplib::Response& response) {
      const bool is_ready = !model.service.is_stopping();
      response.status = is_ready ? 200 : 503;
      response.set_content(dumped({{"status", is_ready ? "ok" : "unavailable"},
                                   {"service", "megatron"},
                                   {"ready", is_ready}}),
                           kJson);
    };
    get("/health", health);
    get("/v1/health", health);
    get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(model.service.metrics().text(model.service.state(), model.name),
                           "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  void add_pages() {
    const auto add = [this](const char* path, const WebPage& page) {
      get(path,
          [page](const httplib::Request&, httplib::Response& response) { page.set(response); });
    };
    add("/", WebPage(kPageText));
    add("/index.html", WebPage(kPageText));
    add("/docs", WebPage(kDocsText));
    get("/openapi.json", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(kOpenApiText, kJson);
    });
  }

  ServedModel& model;
  ServerOptions options;
  HttpServer http;
  std::vector<std::string> paths;
  std::thread listener;
};

Server::Server(ServedModel& model, const ServerOptions& options)
    : routes_(std::make_unique<Routes>(model, options)) {
  port_ = routes_->http.bind(options.host, options.port);
  routes_->listener = std::thread([this] { routes_->http.listen_after_bind(); });
  while (!routes_->http.is_running()) std::this_thread::yield();
}

const std::vector<std::string>& Server::routes() const { return routes_->paths; }

Server::~Server() {
  routes_->http.end();
  routes_->listener.join();
}

}  // namespace megatron::serve
