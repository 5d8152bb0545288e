#include "megatron/tensor/new_tensors.h"

#include "megatron/core/turns.h"
#include "megatron/device/allocator.h"

namespace megatron {
namespace {

// The list of this thread, as grad_enabled() is a mode of this thread: ranks are threads.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): no caller could pass it
thread_local ThreadMode<NewTensors*> innermost(nullptr);

}  // namespace

NewTensors::NewTensors() : previous_(innermost.set(this)) {}
NewTensors::~NewTensors() { innermost.set(previous_); }

void NewTensors::note(const std::shared_ptr<Storage>& storage, int64_t numel) {
  if (innermost.get() == nullptr || current_memory_category() != MemoryCategory::kActivations)
    return;
  innermost.get()->entries_.push_back({storage, numel});
}

}  // namespace megatron
