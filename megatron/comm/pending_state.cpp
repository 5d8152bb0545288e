#include "megatron/comm/pending_state.h"

#include <utility>

#include "megatron/device/cuda.h"

namespace megatron::comm {

Pending::State::State(Device gpu) : done(cuda::create_event(gpu.index, /*is_timed=*/false)) {}

Pending::State::~State() {
  if (done != nullptr) cuda::destroy_event(done);
}

std::unique_ptr<Pending::State> PendingStates::take(Device gpu) {
  if (idle_.empty()) return std::make_unique<Pending::State>(gpu);
  std::unique_ptr<Pending::State> state = std::move(idle_.back());
  idle_.pop_back();
  return state;
}

void PendingStates::give_back(std::unique_ptr<Pending::State> state) {
  state->rest = nullptr;
  state->group.reset();
  idle_.push_back(std::move(state));
}

}  // namespace megatron::comm
