#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "megatron/http/byte_budget.h"
#include "megatron/http/web_access.h"

namespace megatron {

struct HttpLimits {
  int64_t max_connections = 512;
  int64_t max_body_bytes = int64_t{16} << 20;
  // Limit for the bodies of all requests, and for the data parsed from them until the engine takes
  // it. A byte of a body counts kMemoryOfByte times, as soon as the request's head announces it;
  // the first kFreeBodyBytes of a body are free, so that small requests are always served. 0: 16
  // times max_body_bytes.
  int64_t max_request_memory = 0;
  static constexpr int64_t kMemoryOfByte = 8;
  static constexpr int64_t kFreeBodyBytes = int64_t{32} << 10;
  std::chrono::milliseconds request_time{30'000};  // for receiving a whole request
  std::chrono::milliseconds write_time{30'000};    // for sending a piece of a response
  std::chrono::milliseconds idle_time{5'000};      // keep-alive between two requests
};

inline constexpr const char* kNoMemory =
    "the bodies of all requests take more memory than --max-request-memory allows; try again later";

// The reason of WebAccess to refuse a request, by its headers Host and Origin.
std::optional<std::string> access_problem(const WebAccess& access, const httplib::Request& request);

// cpp-httplib's server with a thread for each connection and its own reading of requests: the
// time-out for a slow client applies to the whole request, not to each byte, and a handler can
// check whether its client is still connected. Beyond max_connections a new connection replaces the
// one that has waited longest for its first request or for the rest of one, which gets 429; if
// there is none, the new one gets 429. So does a body that exceeds the remaining memory.
class HttpServer final : public httplib::Server {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer() override;

  // Binds and listens; returns the port, which the system chooses for 0. Throws ConfigError on
  // failure.
  int bind(const std::string& host, int port);
  // Graceful shutdown: closes idle connections, and others after their request. Then
  // listen_after_bind() returns.
  void end();

  // In a handler: true if the client of this request has closed its connection.
  static bool client_is_gone();
  static bool has_body(const httplib::Request& request);
  // In a handler: closes the connection after the response, because the request was not read
  // completely: the rest would be parsed as the next request.
  static void close_after(httplib::Response& response);
  // In a handler: a lock for parsing and tokenizing a body of more than kFreeBodyBytes, so that
  // parsed values and tokens exist for one large body at a time.
  static std::unique_lock<std::mutex> turn(const std::string& body);
  // In a handler: the engine has the request, and only the text of the body remains in memory.
  static void give_memory_back();
  // In the error handler: true if the body was not read for lack of memory.
  static bool is_out_of_memory();
  int64_t num_connections() const { return num_connections_; }

 private:
  struct Client;
  class Connection;
  class Threads;
  class Refusals;
  class PendingRequest;
  class PendingRequests;
  bool process_and_close_socket(socket_t socket) override;
  void serve_and_close(Client& client, std::unique_ptr<PendingRequest> pending);
  void serve(Client& client, std::unique_ptr<PendingRequest> pending);

  HttpLimits limits_;
  ByteBudget memory_;
  std::mutex large_body_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<int64_t> num_connections_ = 0;
  std::unique_ptr<Refusals> refusals_;
  std::unique_ptr<PendingRequests> pending_;
  Threads* threads_ = nullptr;  // the library's, while it listens
};

}  // namespace megatron
