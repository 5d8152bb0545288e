#include "megatron/serve/service.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/serve/request_codec.h"

namespace megatron::serve {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Heartbeat interval: rank 0 broadcasts at least this often so that idle ranks do not time out.
constexpr std::chrono::seconds kHeartbeat(1);

double seconds_since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

// Broadcasts a value from rank 0.
json shared_json(const json& value, const comm::Group& world) {
  std::string text = world.rank() == 0 ? value.dump() : std::string();
  auto size = static_cast<int64_t>(text.size());
  comm::broadcast({&size, {1}, DType::kInt64}, 0, world, Stream{});
  text.resize(static_cast<size_t>(size));
  comm::broadcast({text.data(), {size}, DType::kUInt8}, 0, world, Stream{});
  return json::parse(text);
}

std::string name_of(Finish finish) { return finish == Finish::kStop ? "stop" : "length"; }

}  // namespace

// State shared by the client threads and the engine's thread, under one lock.
struct Service::Shared {
  std::mutex mutex;
  std::condition_variable has_commands;
  std::deque<std::shared_ptr<Ticket::State>> submitted;
  std::vector<RequestId> canceled;
  int64_t num_submitted = 0;  // requests in `submitted`
  EngineState state;
  std::string end;  // why no request can be served any more
  bool has_failed = false;
  bool is_stopping = false;
  Clock::time_point deadline;

  [[noreturn]] void refuse() const {
    if (has_failed) throw Failed(end);
    throw Unavailable(end);
  }
};

struct Ticket::State {
  // An unfinished request.
  struct Entry {
    Request request = {};
    RequestId id = 0;  // 0: the engine does not have it yet
    bool is_over = false;
    bool is_started = false;
    std::optional<Clock::time_point> last_token = {};
  };
  std::shared_ptr<Service::Shared> shared;
  std::vector<Entry> entries;
  Clock::time_point submitted;
  std::deque<RequestEvent> events;
  std::condition_variable has_events;
};

Ticket::~Ticket() {
  for (size_t index = 0; index < state_->entries.size(); ++index) cancel(index);
}

void Ticket::cancel(size_t index) {
  Service::Shared& shared = *state_->shared;
  const std::lock_guard lock(shared.mutex);
  State::Entry& entry = state_->entries[index];
  if (entry.is_over) return;
  entry.is_over = true;
  if (entry.id != 0) {
    shared.canceled.push_back(entry.id);
    shared.has_commands.notify_all();
  }
}

std::optional<RequestEvent> Ticket::wait(std::chrono::milliseconds most) {
  Service::Shared& shared = *state_->shared;
  std::unique_lock lock(shared.mutex);
  const auto is_ready = [&] { return !state_->events.empty() || !shared.end.empty(); };
  if (!state_->has_events.wait_for(lock, most, is_ready)) return {};
  if (state_->events.empty()) shared.refuse();
  RequestEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  return event;
}

// Submissions and cancellations that a step begins with.
struct Service::Commands {
  std::vector<Request> requests;
  std::vector<std::pair<std::shared_ptr<Ticket::State>, size_t>> owners;  // on rank 0
  std::vector<RequestId> canceled;
  bool is_last = false;
};

Service::Service(const InferenceModel& model, const comm::Group& world,
                 const ServiceOptions& options)
    : model_(model),
      world_(world),
      options_(options),
      engine_(model, options.engine),
      shared_(std::make_shared<Shared>()) {
  shared_->state = engine_.state();
}

Service::~Service() = default;

std::unique_ptr<Ticket> Service::submit(std::vector<Request> requests) {
  for (const Request& request : requests) engine_.check(request);
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->end.empty()) shared_->refuse();
  if (shared_->is_stopping) throw Unavailable("the server is shutting down");
  const int64_t waiting = shared_->num_submitted + shared_->state.waiting;
  if (waiting >= options_.max_queue) {
    metrics_.count_refused();
    throw Overloaded(fmt::format("{} requests wait already; try again later", waiting));
  }
  auto state = std::make_shared<Ticket::State>();
  state->shared = shared_;
  state->submitted = Clock::now();
  for (Request& request : requests) state->entries.push_back({std::move(request)});
  shared_->num_submitted += static_cast<int64_t>(state->entries.size());
  shared_->submitted.push_back(state);
  shared_->has_commands.notify_all();
  return std::unique_ptr<Ticket>(new Ticket(std::move(state)));
}

EngineState Service::state() const {
  const std::lock_guard lock(shared_->mutex);
  EngineState state = shared_->state;
  state.waiting += shared_->num_submitted;
  return state;
}

bool Service::is_stopping() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->is_stopping || !shared_->end.empty();
}

void Service::stop(std::chrono::milliseconds most) {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->deadline = Clock::now() + most;
  shared_->has_commands.notify_all();
}

// Rank 0: waits for work, at most for the heartbeat interval.
Service::Commands Service::collected() {
  Commands commands;
  std::unique_lock lock(shared_->mutex);
  const auto is_ready = [&] {
    return engine_.has_work() || shared_->is_stopping || !shared_->submitted.empty() ||
           !shared_->canceled.empty();
  };
  shared_->has_commands.wait_for(lock, kHeartbeat, is_ready);
  for (const auto& state : shared_->submitted) {
    for (size_t index = 0; index < state->entries.size(); ++index) {
      if (state->entries[index].is_over) continue;  // its client has gone
      commands.requests.push_back(state->entries[index].request);
      commands.owners.emplace_back(state, index);
    }
  }
  shared_->submitted.clear();
  // They count as waiting until the step has run, so that the queue limit holds meanwhile.
  shared_->state.waiting += static_cast<int64_t>(commands.requests.size());
  shared_->num_submitted = 0;
  commands.canceled = std::exchange(shared_->canceled, {});
  const bool is_idle = commands.requests.empty() && !engine_.has_work();
  commands.is_last = shared_->is_stopping && (is_idle || Clock::now() >= shared_->deadline);
  return commands;
}

void Service::run() {
  try {
    for (;;) {
      Commands commands;
      if (world_.rank() == 0) commands = collected();
      if (world_.size() > 1) {
        json told = {{"canceled", commands.canceled}, {"is_last", commands.is_last}};
        told["requests"] = json::array();
        for (const Request& request : commands.requests) {
          told["requests"].push_back(encoded(request));
        }
        told = shared_json(told, world_);
        if (world_.rank() != 0) {
          for (const json& request : told["requests"]) {
            commands.requests.push_back(decoded(request));
          }
          told["canceled"].get_to(commands.canceled);
          told["is_last"].get_to(commands.is_last);
        }
      }
      if (commands.is_last) break;
      for (size_t i = 0; i < commands.requests.size(); ++i) {
        const RequestId id = engine_.submit(std::move(commands.requests[i]));
        if (world_.rank() != 0) continue;
        const auto& [state, index] = commands.owners[i];
        const std::lock_guard lock(shared_->mutex);
        state->entries[index].id = id;
        if (state->entries[index].is_over) shared_->canceled.push_back(id);
        owners_[id] = {state, index};
      }
      for (const RequestId id : commands.canceled) {
        engine_.cancel(id);
        if (owners_.erase(id) > 0) metrics_.count_finished("abort");
      }
      std::vector<RequestProgress> all;
      if (engine_.has_work()) all = engine_.step();
      if (world_.rank() == 0) dispatch(std::move(all));
    }
  } catch (const std::exception& error) {
    end(fmt::format("the server has failed: {}", error.what()), true);
    throw;
  }
  end("the server is shutting down", false);
}

// Delivers the results of a step to the waiting threads.
void Service::dispatch(std::vector<RequestProgress> all) {
  const std::lock_guard lock(shared_->mutex);
  shared_->state = engine_.state();
  for (RequestProgress& progress : all) {
    const auto owner = owners_.find(progress.id);
    if (owner == owners_.end()) continue;
    const std::shared_ptr<Ticket::State> state = owner->second.first.lock();
    const size_t index = owner->second.second;
    const bool is_finished = progress.finish != Finish::kNone;
    if (state != nullptr) {
      Ticket::State::Entry& entry = state->entries[index];
      if (!std::exchange(entry.is_started, true)) {
        metrics_.add_queue_time(seconds_since(state->submitted));
      }
      if (progress.token) {
        metrics_.count_token();
        if (entry.last_token) {
          metrics_.add_time_between_tokens(seconds_since(*entry.last_token));
        } else {
          metrics_.add_time_to_first_token(seconds_since(state->submitted));
        }
        entry.last_token = Clock::now();
      }
      if (is_finished) metrics_.add_request_time(seconds_since(state->submitted));
      if (!entry.is_over) {
        entry.is_over = is_finished;
        state->events.push_back({index, std::move(progress)});
        state->has_events.notify_all();
      }
    }
    if (!is_finished) continue;
    metrics_.count_finished(progress.finish == Finish::kFailed ? "abort"
                                                               : name_of(progress.finish));
    owners_.erase(owner);
  }
}

// Wakes all waiting threads: there will be no further events.
void Service::end(const std::string& reason, bool has_failed) {
  const std::lock_guard lock(shared_->mutex);
  shared_->end = reason;
  shared_->has_failed = has_failed;
  shared_->state = {};
  for (const auto& [id, owner] : owners_) {
    if (const auto state = owner.first.lock()) state->has_events.notify_all();
  }
  for (const auto& state : shared_->submitted) state->has_events.notify_all();
}

}  // namespace megatron::serve
