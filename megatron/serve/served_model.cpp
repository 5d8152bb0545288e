#include "megatron/serve/served_model.h"

#include "megatron/device/philox.h"
#include "megatron/serve/http_server.h"

namespace megatron::serve {

uint64_t ServedModel::next_seed() { return mixed_key(seed, num_unseeded++); }

Outcome each_event(const ServedModel& model, Ticket& ticket, size_t num_left,
                   const std::function<bool(const RequestEvent&)>& take) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook(200);  // how often to look for the client
  const auto deadline = Clock::now() + model.request_time;
  while (num_left > 0) {
    if (HttpServer::client_is_gone()) return Outcome::kGone;
    if (model.request_time.count() > 0 && Clock::now() >= deadline) return Outcome::kTimeout;
    const std::optional<RequestEvent> event = ticket.wait(kLook);
    if (!event) continue;
    if (event->progress.finish != Finish::kNone) --num_left;
    if (!take(*event)) return Outcome::kDone;
  }
  return Outcome::kDone;
}

}  // namespace megatron::serve
