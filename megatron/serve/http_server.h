#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "megatron/serve/byte_budget.h"

namespace megatron::serve {

struct HttpLimits {
  int64_t max_connections = 512;
  int64_t max_body_bytes = int64_t{16} << 20;
  // Memory of the bodies of all requests, and of the texts that are made of them until the model
  // has them. A byte of a body counts kMemoryOfByte times, from when its head says that it comes;
  // the first kFreeBodyBytes of a body do not count, so that small requests are answered whatever
  // others send. 0: 16 times max_body_bytes.
  int64_t max_request_memory = 0;
  static constexpr int64_t kMemoryOfByte = 8;
  static constexpr int64_t kFreeBodyBytes = int64_t{32} << 10;
  std::chrono::milliseconds request_time{30'000};  // to send a whole request
  std::chrono::milliseconds write_time{30'000};    // to take a piece of an answer
  std::chrono::milliseconds idle_time{5'000};      // between two requests of a connection
};

inline constexpr const char* kNoMemory =
    "the bodies of all requests take more memory than --max-request-memory allows; try again later";

// cpp-httplib's server with a thread for each connection and its own way of reading: a client that
// sends or takes bytes too slowly is given up after a time for the whole request, not for each
// byte, and a handler can ask whether its client is still there. Beyond max_connections a new
// connection takes the place of the one that has waited longest for its first request, or for the
// rest of a request, which ends with 429; if all others are answered or idle, the new one gets 429.
// A body for which the memory of all requests has no room gets 429, too.
class HttpServer final : public httplib::Server {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer() override;

  // Listens; returns the port, which the system chooses for 0. Throws ConfigError if it cannot.
  int bind(const std::string& host, int port);
  // Connections that are idle end; the others after their request. Then listen_after_bind()
  // returns.
  void end();

  // In a handler: the client of this request has closed its connection.
  static bool client_is_gone();
  // In a handler: a part of the request was not read, so the connection ends with the answer.
  static void close_after_answer();
  // In a handler: while the result lives, no other body of more than kFreeBodyBytes is parsed and
  // tokenized, so that values and tokens take the memory of one body, and a core.
  static std::unique_lock<std::mutex> turn(const std::string& body);
  // In a handler: the model has the request, and only the text of the body stays.
  static void give_memory_back();
  // In the handler of errors: the body was not read because there is no memory for it.
  static bool is_out_of_memory();
  int64_t num_connections() const { return num_connections_; }

 private:
  class Connection;
  class Threads;
  class Refusals;
  class PendingRequest;
  class PendingRequests;
  bool process_and_close_socket(socket_t socket) override;
  void serve_and_close(socket_t socket, std::unique_ptr<PendingRequest> pending);
  void serve(socket_t socket, std::unique_ptr<PendingRequest> pending);

  HttpLimits limits_;
  ByteBudget memory_;
  std::mutex large_body_;
  std::atomic<bool> is_ending_ = false;
  std::atomic<int64_t> num_connections_ = 0;
  std::unique_ptr<Refusals> refusals_;
  std::unique_ptr<PendingRequests> pending_;
  Threads* threads_ = nullptr;  // the library's, while it listens
};

}  // namespace megatron::serve
