#include "megatron/device/allocator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
// Blocks of at least this size are whole huge pages: fewer page faults and table look-ups.
constexpr int64_t kLargeBlock = int64_t{4} << 20;

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

int64_t block_size(int64_t bytes) {
  return rounded_up(std::max<int64_t>(bytes, 1), bytes >= kLargeBlock ? kHugePage : kAlignment);
}

void* take_from_device(int64_t bytes) {
  const int64_t alignment = bytes >= kLargeBlock ? kHugePage : kAlignment;
  void* block = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  if (block != nullptr && bytes >= kLargeBlock) {
    ::madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: failure is harmless
  }
  return block;
}

void give_to_device(void* block) noexcept { std::free(block); }

thread_local MemoryCategory current_category = MemoryCategory::kActivations;

}  // namespace

std::string Device::str() const { return (is_cpu() ? "cpu:" : "cuda:") + std::to_string(index); }

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

CachingAllocator::CachingAllocator(Device device) : device_(device) {}

CachingAllocator::~CachingAllocator() { empty_cache_locked(); }

void* CachingAllocator::allocate(int64_t bytes, MemoryCategory category) {
  invariant(bytes >= 0, "an allocation has at least 0 bytes");
  const int64_t wanted = block_size(bytes);
  const std::lock_guard lock(mutex_);

  int64_t size = wanted;
  void* block = nullptr;
  const auto fit = free_.lower_bound(wanted);
  if (fit != free_.end() && fit->first - wanted <= wanted / 8) {
    size = fit->first;
    block = fit->second;
    free_.erase(fit);
  } else {
    block = take_from_device(wanted);
    if (block == nullptr) {
      empty_cache_locked();
      block = take_from_device(wanted);
    }
    if (block == nullptr) {
      throw DeviceError(
          fmt::format("{}: out of memory: {} more bytes wanted for {}, {} bytes in use; lower "
                      "--micro-batch-size or --seq-length, or use --recompute-activations",
                      device_.str(), bytes, name_of(category), stats_.allocated_bytes));
    }
    ++stats_.num_driver_allocations;
    stats_.reserved_bytes += wanted;
    stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  }

  used_.emplace(block, Block{size, category});
  stats_.allocated_bytes += size;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  const auto slot = static_cast<size_t>(category);
  stats_.by_category[slot] += size;
  stats_.peak_by_category[slot] = std::max(stats_.peak_by_category[slot], stats_.by_category[slot]);
  return block;
}

void CachingAllocator::release(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  if (found == used_.end()) return;
  const auto [size, category] = found->second;
  used_.erase(found);
  stats_.allocated_bytes -= size;
  stats_.by_category[static_cast<size_t>(category)] -= size;
  free_.emplace(size, block);
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
  for (const auto& [size, block] : free_) {
    give_to_device(block);
    stats_.reserved_bytes -= size;
  }
  free_.clear();
}

CachingAllocator& allocator_of(Device device) {
  // Never destroyed: tensors of static storage duration may outlive any order of destruction.
  static auto* allocators = new std::map<int, std::unique_ptr<CachingAllocator>>();
  static auto* mutex = new std::mutex();
  if (!device.is_cpu()) {
    throw Unsupported(device.str() + ": this binary was built without CUDA; use --device cpu");
  }
  const std::lock_guard lock(*mutex);
  std::unique_ptr<CachingAllocator>& slot = (*allocators)[device.index];
  if (slot == nullptr) slot = std::make_unique<CachingAllocator>(device);
  return *slot;
}

MemoryScope::MemoryScope(MemoryCategory category)
    : previous_(std::exchange(current_category, category)) {}

MemoryScope::~MemoryScope() { current_category = previous_; }

MemoryCategory current_memory_category() { return current_category; }

}  // namespace megatron
