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

// The queue is full; a client that comes later may be lucky.
class Overloaded : public Error {
 public:
  using Error::Error;
};
// The server ends.
class Unavailable : public Error {
 public:
  using Error::Error;
};
// A step has failed, for example because a rank is lost, and the server ends.
class Failed : public Unavailable {
 public:
  using Unavailable::Unavailable;
};

// What happened to one of the requests of a ticket.
struct RequestEvent {
  size_t index = 0;  // of the request
  RequestProgress progress = {};
};

// Requests that were submitted together. The destructor cancels those that are not finished.
class Ticket {
 public:
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // The next event; nothing if none came in time. Throws Unavailable when none will come.
  std::optional<RequestEvent> wait(std::chrono::milliseconds most);
  // Forgets one of the requests: no further events.
  void cancel(size_t index);

 private:
  friend class Service;
  struct State;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct ServiceOptions {
  EngineOptions engine = {};
  int64_t max_queue = 256;  // requests that wait for their first token
};

// An engine that many threads of one process use. run() works for them on every rank: rank 0 tells
// the others what was submitted and canceled before each step.
class Service {
 public:
  Service(const InferenceModel& model, const comm::Group& world, const ServiceOptions& options);
  ~Service();

  // From any thread of rank 0. Throws ConfigError if a request cannot run, Overloaded if too many
  // wait, Unavailable after stop().
  std::unique_ptr<Ticket> submit(std::vector<Request> requests);

  // Works until stop() and all requests are finished, or drain() has run out. Every rank calls it.
  // Throws what a step throws; tickets then throw Unavailable.
  void run();
  // Takes no further requests; run() returns when those it has are finished, or after `most`. Safe
  // from any thread.
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
