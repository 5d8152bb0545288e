#include "megatron/device/staging.h"

#include <bit>
#include <cstring>
#include <map>

#include "megatron/core/error.h"
#include "megatron/device/work_graph.h"

namespace megatron {
namespace {

// Enough for several arrays of several microbatches.
constexpr int64_t kNumBuffers = 64;
// All of the small buffers are one allocation: the driver waits for the device to pin memory.
constexpr int64_t kSmall = int64_t{64} << 10;
// A larger upload is part of a model being loaded; its copy must not stay in pinned memory.
constexpr int64_t kLargestUpload = int64_t{2} << 20;

StagingRing& ring_of(Device device) {
  struct Rings {
    std::mutex mutex;
    std::map<int, StagingRing> of;
  };
  // One for each GPU of the process; never destroyed, because the driver may be unloaded first.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Rings();
  const std::lock_guard lock(all->mutex);
  return all->of.try_emplace(device.index, device, kNumBuffers).first->second;
}

}  // namespace

StagingRing::StagingRing(Device device, int64_t num_buffers)
    : device_(device), small_(num_buffers * kSmall, device) {
  invariant(num_buffers > 0, "a ring has a buffer");
  for (int64_t i = 0; i < num_buffers; ++i) slots_.push_back({nullptr, Event(device)});
}

void StagingRing::upload(void* to, const void* from, int64_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  const size_t place = next_++ % slots_.size();
  Slot& slot = slots_[place];
  if (slot.is_used) slot.is_read.synchronize();
  slot.is_used = true;
  std::byte* buffer = small_.data() + place * static_cast<size_t>(kSmall);
  if (bytes > kSmall) {
    if (slot.large == nullptr || slot.large->bytes() < bytes) {
      const auto size = std::bit_ceil(static_cast<uint64_t>(bytes));
      slot.large = std::make_unique<PinnedBuffer>(static_cast<int64_t>(size), device_);
    }
    buffer = slot.large->data();
  }
  if (bytes > 0) std::memcpy(buffer, from, static_cast<size_t>(bytes));
  copy_bytes(to, buffer, bytes, stream);
  slot.is_read.record(stream);
}

void upload_bytes(void* to, const void* from, int64_t bytes, Stream stream) {
  // A later launch would repeat the copy from memory with other contents.
  if (is_recording()) throw DeviceError("upload: recorded work cannot copy from the host's memory");
  if (!stream.has_queue() || bytes > kLargestUpload) return copy_bytes(to, from, bytes, stream);
  ring_of(stream.device).upload(to, from, bytes, stream);
}

}  // namespace megatron
