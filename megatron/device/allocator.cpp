#include "megatron/device/allocator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/turns.h"
#include "megatron/device/cuda.h"
#include "megatron/device/dry_memory.h"
#include "megatron/device/exported_memory.h"
#include "megatron/device/free_memory.h"

namespace megatron {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = 2 * kMiB;
// Blocks of at least this size are whole huge pages: fewer page faults and table look-ups.
constexpr int64_t kLargeBlock = 4 * kMiB;

// Whole blocks only serve requests of similar size. If sizes never repeat (every prompt has its own
// length), the cache would grow without end. It is therefore emptied when it would exceed twice the
// peak in use plus a margin. Runs whose sizes repeat take no new block and never reach that.
int64_t most_reserved(const MemoryStats& stats, int64_t wanted) {
  constexpr int64_t kSlack = 64 * kMiB;
  return 2 * std::max(stats.peak_allocated_bytes, stats.allocated_bytes + wanted) + kSlack;
}

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

void* take_host(int64_t bytes, Device) {
  const int64_t alignment = bytes >= kLargeBlock ? kHugePage : kAlignment;
  void* block = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  if (block != nullptr && bytes >= kLargeBlock) {
    ::madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: failure is harmless
  }
  return block;
}

void give_host(void* block, Device) { std::free(block); }

void* take_dry(int64_t bytes, Device) { return next_dry_memory(bytes); }
void give_dry(void*, Device) {}

void* take_cuda(int64_t bytes, Device device) { return cuda::allocate(bytes, device.index); }
void give_cuda(void* segment, Device device) { cuda::release(segment, device.index); }

// The category of this thread's allocations; MemoryScope sets and restores it.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local ThreadMode<MemoryCategory> current_category(MemoryCategory::kActivations);
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local ThreadMode<const char*> current_purpose(nullptr);
// The pool of this thread's allocations; PoolScope sets and restores it.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local ThreadMode<const MemoryPool*> current_pool(nullptr);

}  // namespace

std::string Device::str() const {
  return std::string(is_dry ? "dry " : "") + (is_cpu() ? "cpu:" : "cuda:") + std::to_string(index);
}

const char* name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

MemorySource MemorySource::cpu() {
  return {.take = take_host,
          .give = give_host,
          .alignment = kAlignment,
          .large_bytes = kLargeBlock,
          .large_alignment = kHugePage};
}

MemorySource MemorySource::cuda() {
  return {.take = take_cuda,
          .give = give_cuda,
          .alignment = 512,
          .large_bytes = kMiB,
          .large_alignment = kHugePage,
          .cuts_blocks = true,
          .small_bytes = kMiB - 1,
          .small_segment_bytes = 8 * kMiB,
          .medium_bytes = 32 * kMiB,
          .medium_segment_bytes = 128 * kMiB};
}

MemorySource MemorySource::of(Device device) {
  MemorySource source = device.is_cpu() ? cpu() : cuda();
  if (device.is_dry) {
    source.take = take_dry;
    source.give = give_dry;
  }
  return source;
}

CachingAllocator::CachingAllocator(Device device)
    : CachingAllocator(device, MemorySource::of(device)) {
  if (!device.is_cpu() && !device.is_dry && !cuda::kIsBuilt) {
    throw Unsupported(device.str() + ": this binary was built without CUDA; use --device cpu");
  }
}

CachingAllocator::CachingAllocator(Device device, const MemorySource& source)
    : device_(device), source_(source) {}

CachingAllocator::~CachingAllocator() { empty_cache_locked(); }

int64_t MemorySource::block_bytes(int64_t bytes) const {
  return rounded_up(std::max<int64_t>(bytes, 1),
                    bytes >= large_bytes ? large_alignment : alignment);
}

void CachingAllocator::throw_out_of_memory(int64_t bytes, MemoryCategory category) const {
  const auto gibibytes = [](int64_t count) {
    return fmt::format("{:.2f} GiB", static_cast<double>(count) / static_cast<double>(kMiB << 10));
  };
  const int64_t free_bytes = free_memory_bytes(device_);
  int64_t kept_bytes = 0;
  for (const auto& [data, block] : blocks_) {
    const bool is_whole_segment = block.before == nullptr && block.after == nullptr;
    if (block.is_free && is_whole_segment && is_exported(data)) kept_bytes += block.bytes;
  }
  const std::string kept =
      kept_bytes == 0
          ? ""
          : fmt::format(
                "; {} are free, but open in other processes: run ranks as threads, or with "
                "MEGATRON_PEER_COPIES=off",
                gibibytes(kept_bytes));
  throw DeviceError(fmt::format(
      "{}: out of memory: cannot allocate {} bytes ({}) for {}, {} in use (peak {}), {} "
      "reserved{}; lower --micro-batch-size, or use --recompute-granularity full or a smaller "
      "model (megatron plan shows what fits){}",
      device_.str(), bytes, gibibytes(bytes), name_of(category), gibibytes(stats_.allocated_bytes),
      gibibytes(stats_.peak_allocated_bytes), gibibytes(stats_.reserved_bytes),
      free_bytes < 0 ? "" : fmt::format(", {} free", gibibytes(free_bytes)), kept));
}

void* CachingAllocator::allocate(int64_t bytes, MemoryCategory category, int pool) {
  invariant(bytes >= 0, "an allocation's size is not negative");
  const int64_t wanted = source_.block_bytes(bytes);
  const Kind kind{pool, source_.cuts_blocks && wanted <= source_.small_bytes};
  const std::lock_guard lock(mutex_);

  Block* block = fitting(wanted, kind);
  if (block == nullptr && !source_.cuts_blocks &&
      stats_.reserved_bytes + wanted > most_reserved(stats_, wanted)) {
    empty_cache_locked();
  }
  if (block == nullptr) block = new_segment(wanted, kind);
  if (block == nullptr) {
    empty_cache_locked();
    block = new_segment(wanted, kind);
  }
  if (block == nullptr) {
    throw_out_of_memory(bytes, category);
  }
  if (source_.cuts_blocks) cut(block, wanted);

  block->category = category;
  block->used_bytes = wanted;
  stats_.allocated_bytes += wanted;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  const auto slot = static_cast<size_t>(category);
  stats_.by_category[slot] += wanted;
  stats_.peak_by_category[slot] = std::max(stats_.peak_by_category[slot], stats_.by_category[slot]);
  if (device_.is_dry && !counts_segments()) block->log_row = log_taken(device_, category, wanted);
  return block->data;
}

CachingAllocator::Block* CachingAllocator::fitting(int64_t wanted, Kind kind) {
  FreeBlocks& blocks = free_[kind];
  Block smallest;
  smallest.bytes = wanted;
  const auto fit = blocks.lower_bound(&smallest);
  if (fit == blocks.end()) return nullptr;
  if (!source_.cuts_blocks && (*fit)->bytes - wanted > wanted / 8) return nullptr;
  Block* const block = *fit;
  blocks.erase(fit);
  block->is_free = false;
  return block;
}

CachingAllocator::Block* CachingAllocator::new_segment(int64_t wanted, Kind kind) {
  if (kind.is_small) return segment_of(source_.small_segment_bytes, kind);
  Block* segment = nullptr;
  if (wanted <= source_.medium_bytes) segment = segment_of(source_.medium_segment_bytes, kind);
  return segment != nullptr ? segment : segment_of(wanted, kind);
}

CachingAllocator::Block* CachingAllocator::segment_of(int64_t bytes, Kind kind) {
  void* const data = source_.take(bytes, device_);
  if (data == nullptr) return nullptr;
  ++stats_.num_driver_allocations;
  stats_.reserved_bytes += bytes;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  Block& block = blocks_[data];
  block.data = static_cast<std::byte*>(data);
  block.bytes = bytes;
  block.is_small = kind.is_small;
  block.pool = kind.pool;
  if (counts_segments()) block.log_row = log_taken(device_, current_category.get(), bytes);
  return &block;
}

void CachingAllocator::cut(Block* block, int64_t wanted) {
  if (block->bytes == wanted) return;
  std::byte* const end = block->data + wanted;
  Block& rest = blocks_[end];
  rest.data = end;
  rest.bytes = block->bytes - wanted;
  rest.is_small = block->is_small;
  rest.is_free = true;
  rest.pool = block->pool;
  rest.before = block;
  rest.after = block->after;
  if (rest.after != nullptr) rest.after->before = &rest;
  block->after = &rest;
  block->bytes = wanted;
  free_blocks_like(rest).insert(&rest);
}

void CachingAllocator::join(Block* block, Block* after) {
  block->bytes += after->bytes;
  block->after = after->after;
  if (block->after != nullptr) block->after->before = block;
  blocks_.erase(after->data);
}

void CachingAllocator::release(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end() || found->second.is_free) return;
  Block* block = &found->second;
  stats_.allocated_bytes -= block->used_bytes;
  stats_.by_category[static_cast<size_t>(block->category)] -= block->used_bytes;
  if (device_.is_dry && !counts_segments()) log_given(block->log_row, block->used_bytes);

  FreeBlocks& blocks = free_blocks_like(*block);
  if (Block* const after = block->after; after != nullptr && after->is_free) {
    blocks.erase(after);
    join(block, after);
  }
  if (Block* const before = block->before; before != nullptr && before->is_free) {
    blocks.erase(before);
    join(before, block);
    block = before;
  }
  block->is_free = true;
  blocks.insert(block);
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peaks() {
  const std::lock_guard lock(mutex_);
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
  stats_.peak_by_category = stats_.by_category;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  empty_cache_locked();
}

void CachingAllocator::empty_cache_locked() noexcept {
  for (auto& [kind, blocks] : free_) {
    if (kept_pools_.contains(kind.pool)) continue;
    for (auto at = blocks.begin(); at != blocks.end();) {
      Block* const block = *at;
      const bool is_whole_segment = block->before == nullptr && block->after == nullptr;
      if (!is_whole_segment || is_exported(block->data)) {
        ++at;
        continue;
      }
      at = blocks.erase(at);
      source_.give(block->data, device_);
      stats_.reserved_bytes -= block->bytes;
      if (counts_segments()) log_given(block->log_row, block->bytes);
      blocks_.erase(block->data);
    }
  }
}

int CachingAllocator::open_pool() {
  const std::lock_guard lock(mutex_);
  return ++num_pools_;
}

void CachingAllocator::keep_pool(int pool) {
  const std::lock_guard lock(mutex_);
  kept_pools_.insert(pool);
}

void CachingAllocator::close_pool(int pool) noexcept {
  const std::lock_guard lock(mutex_);
  kept_pools_.erase(pool);
  for (auto& [data, block] : blocks_) {
    if (block.pool == pool) block.pool = 0;
  }
  for (const bool is_small : {false, true}) {
    const auto found = free_.find({pool, is_small});
    if (found == free_.end()) continue;
    free_[{0, is_small}].merge(found->second);
    free_.erase(found);
  }
}

CachingAllocator& allocator_of(Device device) {
  struct Allocators {
    std::mutex mutex;
    std::map<std::tuple<DeviceType, int, bool>, CachingAllocator> of;
  };
  // One for each device of the process. Never destroyed: static tensors may outlive any order of
  // destruction.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Allocators();
  const std::lock_guard lock(all->mutex);
  return all->of.try_emplace({device.type, device.index, device.is_dry}, device).first->second;
}

MemoryScope::MemoryScope(MemoryCategory category, const char* purpose)
    : previous_(current_category.set(category)), previous_purpose_(current_purpose.set(purpose)) {}

MemoryScope::~MemoryScope() {
  current_category.set(previous_);
  current_purpose.set(previous_purpose_);
}

const char* current_memory_purpose() { return current_purpose.get(); }

MemoryCategory current_memory_category() { return current_category.get(); }

MemoryPool::MemoryPool(CachingAllocator& allocator)
    : allocator_(allocator), number_(allocator.open_pool()) {}

MemoryPool::~MemoryPool() { allocator_.close_pool(number_); }

void MemoryPool::keep() { allocator_.keep_pool(number_); }

PoolScope::PoolScope(const MemoryPool* pool)
    : previous_(current_pool.set(pool != nullptr ? pool : current_pool.get())) {}

PoolScope::~PoolScope() { current_pool.set(previous_); }

int current_memory_pool(const CachingAllocator& allocator) {
  const MemoryPool* const pool = current_pool.get();
  return pool != nullptr && &pool->allocator() == &allocator ? pool->number() : 0;
}

}  // namespace megatron
