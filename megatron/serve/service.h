#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/inference/engine.h"
#include "megatron/serve/metrics.h"

namespace megatron::serve {

// The queue is full; a later attempt may succeed.
class Overloaded : public Error {
 public:
  using Error::Error;
};
// The server is shutting down.
class Unavailable : public Error {
 public:
  using Error::Error;
};
// A step has failed, for example because a rank died, and the server ends.
class Failed : public Unavailable {
 public:
  using Unavailable::Unavailable;
};

// Progress of one of a ticket's requests.
struct RequestEvent {
  size_t index = 0;  // of the request in the ticket
  RequestProgress progress = {};
};

// Requests submitted together. The destructor cancels unfinished ones.
class Ticket {
 public:
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // The next event; nothing after the time-out. Throws Unavailable if there will be none.
  std::optional<RequestEvent> wait(std::chrono::milliseconds most);
  // Cancels one of the requests: no further events.
  void cancel(size_t index);

 private:
  friend class Service;
  struct State;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct ServiceOptions {
  EngineOptions engine = {};
  int64_t max_queue = 256;  // requests waiting for their first token
};

// Shares an engine among many threads of rank 0. Every rank calls run(); before each step rank 0
// broadcasts the requests submitted and cancelled since the last one.
class Service {
 public:
  Service(const InferenceModel& model, const comm::Group& world, const ServiceOptions& options);
  ~Service();

  // Callable from any thread of rank 0. Throws ConfigError if a request is invalid, Overloaded if
  // the queue is full, Unavailable after stop().
  std::unique_ptr<Ticket> submit(std::vector<Request> requests);

  // Runs steps until stop() was called and all requests are finished, or the time of drain() is
  // over. Every rank calls it. Rethrows exceptions of a step; tickets then throw Unavailable.
  void run();
  // Rejects further requests; run() returns when the current ones are finished, or after `most`.
  // Thread safe.
  void stop(std::chrono::milliseconds most);
  bool is_stopping() const;

  EngineState state() const;
  Metrics& metrics() { return metrics_; }
  const InferenceModel& model() const { return model_; }

  struct Shared;  // with tickets; defined in service.cpp

 private:
  struct Commands;
  Commands collected();
  void dispatch(std::vector<RequestProgress> all);
  void end(const std::string& reason, bool has_failed);

  InferenceModel model_;
  comm::Group world_;
  ServiceOptions options_;
  Engine engine_;
  Metrics metrics_;

  std::shared_ptr<Shared> shared_;
  std::map<RequestId, std::pair<std::weak_ptr<Ticket::State>, size_t>> owners_;
};

}  // namespace megatron::serve
