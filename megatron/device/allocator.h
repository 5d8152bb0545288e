#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "megatron/device/device.h"

namespace megatron {

// The purpose of a block of memory; an allocation counts for the current category (MemoryScope).
enum class MemoryCategory { kParameters, kGradients, kOptimizer, kActivations, kWorkspace };
inline constexpr int kNumMemoryCategories = 5;
const char* name_of(MemoryCategory category);

// Bytes, and the number of calls to the device's own allocator.
struct MemoryStats {
  int64_t allocated_bytes = 0;       // in use now
  int64_t peak_allocated_bytes = 0;  // maximum since the last reset
  int64_t reserved_bytes = 0;        // taken from the device, in use or cached
  int64_t peak_reserved_bytes = 0;
  int64_t num_driver_allocations = 0;
  std::array<int64_t, kNumMemoryCategories> by_category{};       // in use now
  std::array<int64_t, kNumMemoryCategories> peak_by_category{};  // each category's own peak
};

// An allocator's source of memory and its policy for dividing it.
struct MemorySource {
  void* (*take)(int64_t bytes, Device device) = nullptr;  // returns null if there is no more
  void (*give)(void* segment, Device device) = nullptr;   // REQUIRES: does not throw

  int64_t alignment = 64;  // of blocks, in bytes
  // Requests of at least `large_bytes` are rounded up to a multiple of `large_alignment`.
  int64_t large_bytes = 0;
  int64_t large_alignment = 0;
  // Blocks are cut to the request, and free neighbours are joined. Without it a block only serves
  // requests that it exceeds by at most an eighth.
  bool cuts_blocks = false;
  // With cuts_blocks: requests of at most small_bytes are cut from segments of small_segment_bytes
  // and from no others, where a long-lived small block would keep a large one apart. Requests of at
  // most medium_bytes are cut from segments of medium_segment_bytes, if the device has that much.
  int64_t small_bytes = 0;
  int64_t small_segment_bytes = 0;
  int64_t medium_bytes = 0;
  int64_t medium_segment_bytes = 0;

  // The block size for a request of `bytes`.
  int64_t block_bytes(int64_t bytes) const;

  // Host memory: whole blocks, so that heap checkers see each of them.
  static MemorySource cpu();
  // A driver call costs up to a millisecond and waits for the device. The driver hands out pages of
  // 2 MiB.
  static MemorySource cuda();
  // A dry device has the policy of its type, and addresses without memory.
  static MemorySource of(Device device);
};

// Keeps freed blocks and hands them out again, so that nothing is requested from the device after
// the first iterations. A request gets the smallest block that fits; if none does, the allocator
// takes new memory; if the device refuses, it empties the cache and tries once more. A released
// block may be handed out while work on it is still queued: all its users share one stream. Thread
// safe. Blocks are aligned to 64 bytes or more; their content is undefined.
class CachingAllocator {
 public:
  // Uses the device's own memory. Throws Unsupported for CUDA in a build without it.
  explicit CachingAllocator(Device device);
  CachingAllocator(Device device, const MemorySource& source);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // bytes >= 0. `pool` is a MemoryPool's number, or 0 for the common blocks. Throws DeviceError
  // with the sizes and the remedy if there is no memory.
  void* allocate(int64_t bytes, MemoryCategory category, int pool = 0);
  void release(void* block) noexcept;

  MemoryStats stats() const;
  void reset_peaks();
  // Returns the cached segments that have no block in use to the device, except for those that a
  // pool keeps.
  void empty_cache();

 private:
  friend class MemoryPool;

  // A range of a segment, in use or free; a segment is a list of blocks.
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t used_bytes = 0;  // the part of bytes that statistics count while it is in use
    bool is_small = false;   // in a segment of small blocks
    bool is_free = false;
    int pool = 0;
    MemoryCategory category = MemoryCategory::kActivations;
    int log_row = -1;  // of a dry device: see MemoryLog
    Block* before = nullptr;
    Block* after = nullptr;
  };
  struct Smaller {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
  };
  using FreeBlocks = std::set<Block*, Smaller>;
  // Properties that a request and its block must share.
  struct Kind {
    int pool = 0;
    bool is_small = false;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of the comparison for one
    auto operator<=>(const Kind&) const = default;
  };

  // A MemoryLog counts the segments of a dry host, whose cached blocks stay resident, and the
  // blocks in use of a dry device.
  bool counts_segments() const { return device_.is_dry && device_.index < 0; }
  FreeBlocks& free_blocks_like(const Block& block) { return free_[{block.pool, block.is_small}]; }
  // Takes a block for a request from the free list; null if there is none.
  Block* fitting(int64_t wanted, Kind kind);
  // A new segment as one block; null if the device has no memory.
  Block* new_segment(int64_t wanted, Kind kind);
  Block* segment_of(int64_t bytes, Kind kind);
  // Splits off the part beyond `wanted` as a free block.
  void cut(Block* block, int64_t wanted);
  // Joins `block` and `after`, which follows it.
  void join(Block* block, Block* after);
  void empty_cache_locked() noexcept;
  int open_pool();
  void keep_pool(int pool);
  // Moves the pool's blocks to the common ones.
  void close_pool(int pool) noexcept;
  [[noreturn]] void throw_out_of_memory(int64_t bytes, MemoryCategory category) const;

  const Device device_;
  const MemorySource source_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;  // by address; nodes stay where they are
  std::map<Kind, FreeBlocks> free_;
  int num_pools_ = 0;  // opened so far
  std::set<int> kept_pools_;
  MemoryStats stats_;
};

// The allocator of a device; lives as long as the process.
CachingAllocator& allocator_of(Device device);

// Counts the allocations of this thread under `category` while it lives. `purpose`, a literal,
// names them in a MemoryLog ("main gradients"); null: the innermost TraceRange does.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category, const char* purpose = nullptr);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory previous_;
  const char* previous_purpose_;
};
// kActivations if no MemoryScope is open.
MemoryCategory current_memory_category();
// Null if the innermost MemoryScope has none.
const char* current_memory_purpose();

// A part of an allocator whose blocks serve only its own requests, so that recorded work
// (device/work_graph.h) may keep using memory that was released after recording. Statistics count
// it like the rest.
class MemoryPool {
 public:
  // The allocator must outlive it.
  explicit MemoryPool(CachingAllocator& allocator);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // From now on keeps all its segments while it lives. Call before recording.
  void keep();

  const CachingAllocator& allocator() const { return allocator_; }
  int number() const { return number_; }

 private:
  CachingAllocator& allocator_;
  const int number_;
};

// While it lives, this thread's allocations from the pool's allocator come from the pool. Null
// changes nothing.
class PoolScope {
 public:
  explicit PoolScope(const MemoryPool* pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  const MemoryPool* previous_;
};
// The number of this thread's current pool of an allocator; 0 if there is none.
int current_memory_pool(const CachingAllocator& allocator);

}  // namespace megatron
