#include "megatron/tensor/new_tensors.h"

#include <utility>

#include "megatron/device/allocator.h"

namespace megatron {
namespace {

// The list of this thread, as grad_enabled() is a mode of this thread: ranks are threads.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): no caller could pass it
thread_local NewTensors* innermost = nullptr;

}  // namespace

NewTensors::NewTensors() : previous_(std::exchange(innermost, this)) {}
NewTensors::~NewTensors() { innermost = previous_; }

void NewTensors::note(const std::shared_ptr<Storage>& storage, int64_t numel) {
  if (innermost == nullptr || current_memory_category() != MemoryCategory::kActivations) return;
  innermost->entries_.push_back({storage, numel});
}

}  // namespace megatron
