#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "megatron/device/device.h"

namespace megatron {

// What a block of memory is for; every allocation is counted under the category in force.
enum class MemoryCategory { kParameters, kGradients, kOptimizer, kActivations, kWorkspace };
inline constexpr int kNumMemoryCategories = 5;
const char* name_of(MemoryCategory category);

// Bytes, and a count of calls to the device's own allocator.
struct MemoryStats {
  int64_t allocated_bytes = 0;       // handed out now
  int64_t peak_allocated_bytes = 0;  // most ever handed out since the last reset
  int64_t reserved_bytes = 0;        // taken from the device, in use or cached
  int64_t peak_reserved_bytes = 0;
  int64_t num_driver_allocations = 0;
  std::array<int64_t, kNumMemoryCategories> by_category{};       // allocated now
  std::array<int64_t, kNumMemoryCategories> peak_by_category{};  // each category's own peak
};

// Keeps freed blocks and hands them out again, so that after the first iteration nothing is asked
// of the device. A block goes to a request it exceeds by at most an eighth (best fit), otherwise
// new memory is taken; when the device refuses, the cache is emptied and the request tried once
// more. Thread safe. Blocks are aligned to 64 bytes and their content is undefined.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device device);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Throws DeviceError with the sizes and the remedy when there is no memory. bytes >= 0.
  void* allocate(int64_t bytes, MemoryCategory category);
  void release(void* block) noexcept;

  MemoryStats stats() const;
  void reset_peaks();
  // Returns cached blocks to the device.
  void empty_cache();

 private:
  struct Block {
    int64_t bytes;
    MemoryCategory category;
  };
  void empty_cache_locked() noexcept;

  const Device device_;
  mutable std::mutex mutex_;
  std::multimap<int64_t, void*> free_;
  std::unordered_map<void*, Block> used_;
  MemoryStats stats_;
};

// The allocator of a device; lives as long as the process.
CachingAllocator& allocator_of(Device device);

// Counts the allocations of this thread under `category` while it lives.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory previous_;
};
// kActivations where no MemoryScope is open.
MemoryCategory current_memory_category();

}  // namespace megatron
