#include "megatron/autograd/delayed_gradients.h"

#include "megatron/core/error.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// Each rank is a thread with its own backward pass.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local ThreadMode<DelayedGradients*> delaying(nullptr);

}  // namespace

DelayedGradients::Scope::Scope(DelayedGradients& later) : previous_(delaying.set(&later)) {}
DelayedGradients::Scope::~Scope() { delaying.set(previous_); }

DelayedGradients* DelayedGradients::current() { return delaying.get(); }

bool DelayedGradients::delays(const GradSink& sink) { return delaying.get() != nullptr && sink; }

void DelayedGradients::add(const GradSink& sink, std::function<Tensor()> make) {
  delaying.get()->entries_.push_back({.sink = sink, .make = std::move(make)});
}

void DelayedGradients::run() {
  invariant(delaying.get() == nullptr, "delayed gradients are added outside backward passes");
  for (Entry& entry : std::exchange(entries_, {})) {
    {
      const TraceRange whole(entry.enclosing_work);
      const TraceRange range(entry.op, entry.sink.main_grad().stream());
      std::exchange(entry.make, nullptr)();
    }
    if (entry.delivered) entry.delivered();
  }
}

}  // namespace megatron
