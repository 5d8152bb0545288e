#include "megatron/autograd/delayed_gradients.h"

#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// Each rank is a thread with its own backward pass.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local DelayedGradients* delaying = nullptr;

}  // namespace

DelayedGradients::Scope::Scope(DelayedGradients& later)
    : previous_(std::exchange(delaying, &later)) {}
DelayedGradients::Scope::~Scope() { delaying = previous_; }

DelayedGradients* DelayedGradients::current() { return delaying; }

bool DelayedGradients::delays(const GradSink& sink) { return delaying != nullptr && sink; }

void DelayedGradients::add(const GradSink& sink, std::function<Tensor()> make) {
  delaying->entries_.push_back({.sink = sink, .make = std::move(make)});
}

void DelayedGradients::run() {
  invariant(delaying == nullptr, "delayed gradients are added outside backward passes");
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
