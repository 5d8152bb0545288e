#include "megatron/device/allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr auto kActivations = MemoryCategory::kActivations;

TEST(CachingAllocatorTest, ReusesAFreedBlock) {
  CachingAllocator allocator(Device{});
  void* first = allocator.allocate(1000, kActivations);
  allocator.release(first);
  EXPECT_EQ(allocator.allocate(1000, kActivations), first);
  EXPECT_EQ(allocator.stats().num_driver_allocations, 1);
  allocator.release(first);
}

TEST(CachingAllocatorTest, DoesNotWasteALargeBlockOnASmallRequest) {
  CachingAllocator allocator(Device{});
  void* large = allocator.allocate(1 << 20, kActivations);
  allocator.release(large);
  void* small = allocator.allocate(1000, kActivations);
  EXPECT_NE(small, large);
  EXPECT_LE(allocator.stats().allocated_bytes, 1024);
  allocator.release(small);
}

TEST(CachingAllocatorTest, CountsCurrentPeakAndCategory) {
  CachingAllocator allocator(Device{});
  void* weights = allocator.allocate(640, MemoryCategory::kParameters);
  void* scratch = allocator.allocate(64, MemoryCategory::kWorkspace);
  allocator.release(scratch);
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.allocated_bytes, 640);
  EXPECT_EQ(stats.peak_allocated_bytes, 704);
  EXPECT_EQ(stats.reserved_bytes, 704);
  EXPECT_EQ(stats.by_category[static_cast<size_t>(MemoryCategory::kParameters)], 640);
  EXPECT_EQ(stats.by_category[static_cast<size_t>(MemoryCategory::kWorkspace)], 0);
  EXPECT_EQ(stats.peak_by_category[static_cast<size_t>(MemoryCategory::kWorkspace)], 64);
  allocator.reset_peaks();
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, 640);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 640);
  allocator.release(weights);
}

TEST(CachingAllocatorTest, BlocksAreAlignedAndEmptyRequestsWork) {
  CachingAllocator allocator(Device{});
  for (const int64_t bytes : {0, 1, 63, 65, 5 << 20}) {
    void* block = allocator.allocate(bytes, kActivations);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    allocator.release(block);
  }
}

TEST(CachingAllocatorTest, OutOfMemoryNamesTheSizeAndTheRemedy) {
  CachingAllocator allocator(Device{});
  try {
    allocator.allocate(int64_t{1} << 60, kActivations);
    FAIL() << "expected DeviceError";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("1152921504606846976"), std::string::npos) << text;
    EXPECT_NE(text.find("--micro-batch-size"), std::string::npos) << text;
  }
}

TEST(CachingAllocatorTest, ServesManyThreads) {
  CachingAllocator allocator(Device{});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator, t] {
      for (int i = 0; i < 1000; ++i) {
        void* block = allocator.allocate(64 * (1 + (i + t) % 7), kActivations);
        *static_cast<int*>(block) = i;
        allocator.release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().allocated_bytes, 0);
}

TEST(MemoryScopeTest, Nests) {
  EXPECT_EQ(current_memory_category(), kActivations);
  {
    const MemoryScope outer(MemoryCategory::kParameters);
    {
      const MemoryScope inner(MemoryCategory::kWorkspace);
      EXPECT_EQ(current_memory_category(), MemoryCategory::kWorkspace);
    }
    EXPECT_EQ(current_memory_category(), MemoryCategory::kParameters);
  }
  EXPECT_EQ(current_memory_category(), kActivations);
}

}  // namespace
}  // namespace megatron
