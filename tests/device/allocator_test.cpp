#include "megatron/device/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/exported_memory.h"
#include "tests/support/message_of.h"

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

// Each prompt has its own length: blocks of sizes that never come again.
TEST(CachingAllocatorTest, SizesThatComeOnceDoNotFillTheCache) {
  CachingAllocator allocator(Device{});
  constexpr int64_t kMiB = 1 << 20;
  int64_t largest = 0;
  for (int64_t size = 5 * kMiB; size < 100 * kMiB; size = size * 8 / 7) {
    allocator.release(allocator.allocate(size, kActivations));
    largest = size;
  }
  EXPECT_LE(allocator.stats().peak_reserved_bytes, 2 * largest + 70 * kMiB);
  // Sizes that repeat are taken once.
  const std::vector<int64_t> sizes = {90 * kMiB, 60 * kMiB, 40 * kMiB, 25 * kMiB};
  for (int pass = 0; pass < 3; ++pass) {
    const int64_t before = allocator.stats().num_driver_allocations;
    for (const int64_t size : sizes) allocator.release(allocator.allocate(size, kActivations));
    if (pass < 2) continue;
    EXPECT_EQ(allocator.stats().num_driver_allocations, before);
  }
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

// A device of `bytes_left` bytes whose blocks are cut, as on a GPU, but of host memory.
class CuttingAllocatorTest : public testing::Test {
 protected:
  static constexpr int64_t kKiB = 1024;

  CuttingAllocatorTest() { bytes_left = 1024 * kKiB; }
  ~CuttingAllocatorTest() override {
    for (void* block : taken) allocator.release(block);
  }

  static MemorySource source() {
    return {.take = [](int64_t bytes, Device) -> void* {
              if (bytes > bytes_left) return nullptr;
              bytes_left -= bytes;
              auto* segment = static_cast<int64_t*>(std::aligned_alloc(512, 512 + as_size(bytes)));
              *segment = bytes;
              return segment + 512 / sizeof(int64_t);
            },
            .give =
                [](void* data, Device) {
                  auto* segment = static_cast<int64_t*>(data) - 512 / sizeof(int64_t);
                  bytes_left += *segment;
                  std::free(segment);
                },
            .alignment = 512,
            .large_bytes = 16 * kKiB,
            .large_alignment = 4 * kKiB,
            .cuts_blocks = true,
            .small_bytes = 8 * kKiB,
            .small_segment_bytes = 64 * kKiB,
            .medium_bytes = 32 * kKiB,
            .medium_segment_bytes = 128 * kKiB};
  }
  static size_t as_size(int64_t bytes) { return static_cast<size_t>(bytes); }

  void* take(int64_t bytes) { return taken.emplace_back(allocator.allocate(bytes, kActivations)); }

  // The source's functions are plain pointers, as the driver's are.
  inline static thread_local int64_t bytes_left = 0;
  std::vector<void*> taken;  // a second release does nothing
  CachingAllocator allocator{Device{}, source()};
};

TEST_F(CuttingAllocatorTest, CutsSmallBlocksFromOneSegment) {
  auto* first = static_cast<std::byte*>(take(100));
  auto* second = static_cast<std::byte*>(take(600));
  EXPECT_EQ(second, first + 512);
  EXPECT_EQ(take(1), second + 1024);
  EXPECT_EQ(allocator.stats().num_driver_allocations, 1);
  EXPECT_EQ(allocator.stats().reserved_bytes, 64 * kKiB);
  EXPECT_EQ(allocator.stats().allocated_bytes, 512 + 1024 + 512);
}

TEST_F(CuttingAllocatorTest, JoinsFreeNeighbours) {
  std::vector<void*> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(take(32 * kKiB));  // one medium segment
  ASSERT_EQ(allocator.stats().num_driver_allocations, 1);
  for (const size_t i : {0u, 2u, 1u, 3u}) allocator.release(parts[i]);
  EXPECT_EQ(take(128 * kKiB), parts[0]);
  EXPECT_EQ(allocator.stats().num_driver_allocations, 1);
}

TEST_F(CuttingAllocatorTest, TakesTheSmallestBlockThatFits) {
  void* large = take(400 * kKiB);
  void* medium = take(200 * kKiB);
  allocator.release(large);
  allocator.release(medium);
  EXPECT_EQ(take(180 * kKiB), medium);
  EXPECT_EQ(take(180 * kKiB), large);
}

TEST_F(CuttingAllocatorTest, AsksTheDeviceForNothingOnceWarm) {
  const auto iteration = [this] {
    std::vector<void*> saved;
    for (int64_t layer = 0; layer < 6; ++layer) {
      void* scratch = take((50 + layer) * kKiB);
      saved.push_back(take(40 * kKiB));
      saved.push_back(take(700));
      allocator.release(scratch);
    }
    void* logits = take(200 * kKiB);
    while (!saved.empty()) {
      void* gradient = take(40 * kKiB);
      allocator.release(saved.back());
      saved.pop_back();
      allocator.release(gradient);
    }
    allocator.release(logits);
  };
  iteration();
  iteration();
  const int64_t warm = allocator.stats().num_driver_allocations;
  for (int i = 0; i < 20; ++i) iteration();
  EXPECT_EQ(allocator.stats().num_driver_allocations, warm);
  EXPECT_EQ(allocator.stats().allocated_bytes, 0);
}

TEST_F(CuttingAllocatorTest, EmptiesTheCacheBeforeItGivesUp) {
  for (int i = 0; i < 3; ++i) {
    void* block = take((600 + 40 * i) * kKiB);  // two of them do not fit on the device
    allocator.release(block);
  }
  EXPECT_EQ(allocator.stats().num_driver_allocations, 3);
  EXPECT_EQ(allocator.stats().reserved_bytes, 680 * kKiB);
  EXPECT_THROW(take(2048 * kKiB), DeviceError);
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
  EXPECT_NE(take(1024 * kKiB), nullptr);
}

TEST_F(CuttingAllocatorTest, KeepsSegmentsOfWhichABlockIsInUse) {
  void* kept = take(32 * kKiB);
  allocator.release(take(32 * kKiB));
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 128 * kKiB);
  allocator.release(kept);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
  EXPECT_EQ(bytes_left, 1024 * kKiB);
}

TEST(CachingAllocatorTest, KeepsSegmentsThatOtherProcessesMayHaveOpen) {
  constexpr int64_t kBytes = 16 << 20;
  static std::array<std::byte, kBytes> segment;  // never anybody else's: it stays exported
  MemorySource source;
  source.take = [](int64_t bytes, Device) -> void* {
    return bytes == kBytes ? segment.data() : nullptr;
  };
  source.give = [](void*, Device) { FAIL() << "it must not be freed"; };
  source.large_bytes = source.large_alignment = kBytes;
  source.cuts_blocks = true;
  CachingAllocator allocator(Device{}, source);
  void* const block = allocator.allocate(kBytes, kActivations);
  keep_exported(block);
  EXPECT_TRUE(is_exported(block));
  allocator.release(block);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved_bytes, kBytes);
  EXPECT_THAT(message_of<DeviceError>([&] { allocator.allocate(2 * kBytes, kActivations); }),
              testing::HasSubstr("; 0.02 GiB are free, but open in other processes: run ranks as "
                                 "threads, or with MEGATRON_PEER_COPIES=off"));
  void* const part = allocator.allocate(1024, kActivations);  // it still serves requests
  EXPECT_EQ(part, block);
  allocator.release(part);
}

TEST_F(CuttingAllocatorTest, NobodyElseIsGivenTheBlocksOfAPool) {
  void* common = take(32 * kKiB);
  allocator.release(common);
  std::optional<MemoryPool> pool(std::in_place, allocator);
  const auto take_of_pool = [&](int64_t bytes) {
    return taken.emplace_back(allocator.allocate(bytes, kActivations, pool->number()));
  };
  void* own = take_of_pool(32 * kKiB);
  EXPECT_NE(own, common);
  EXPECT_EQ(allocator.stats().allocated_bytes, 32 * kKiB);
  EXPECT_EQ(allocator.stats().reserved_bytes, 256 * kKiB);
  allocator.release(own);
  EXPECT_EQ(take(32 * kKiB), common);
  EXPECT_EQ(take_of_pool(16 * kKiB), own);
  allocator.release(common);
  allocator.release(own);

  pool->keep();
  allocator.empty_cache();  // recorded work may use what the pool holds
  EXPECT_EQ(allocator.stats().reserved_bytes, 128 * kKiB);
  void* kept = take_of_pool(16 * kKiB);
  EXPECT_EQ(kept, own);
  pool.reset();
  EXPECT_EQ(allocator.stats().allocated_bytes, 16 * kKiB);
  EXPECT_EQ(take(100 * kKiB), static_cast<std::byte*>(kept) + 16 * kKiB);
  allocator.release(taken.back());
  allocator.release(kept);
  allocator.empty_cache();
  EXPECT_EQ(bytes_left, 1024 * kKiB);
}

TEST_F(CuttingAllocatorTest, APoolWithoutARecordHoldsNoMemoryBack) {
  const MemoryPool pool(allocator);
  allocator.release(allocator.allocate(600 * kKiB, kActivations, pool.number()));
  EXPECT_NE(take(1024 * kKiB), nullptr);  // all that there is
  allocator.release(taken.back());
  EXPECT_NE(taken.emplace_back(allocator.allocate(700 * kKiB, kActivations, pool.number())),
            nullptr);
}

TEST_F(CuttingAllocatorTest, PoolsAreApart) {
  const MemoryPool first(allocator);
  const MemoryPool second(allocator);
  void* block = allocator.allocate(1, kActivations, first.number());
  allocator.release(block);
  void* other = allocator.allocate(1, kActivations, second.number());
  EXPECT_NE(other, block);
  allocator.release(other);
}

TEST(PoolScopeTest, NestsAndKnowsItsAllocator) {
  CachingAllocator allocator(Device{});
  CachingAllocator another(Device{});
  const MemoryPool pool(allocator);
  const MemoryPool inner(allocator);
  EXPECT_EQ(current_memory_pool(allocator), 0);
  {
    const PoolScope scope(&pool);
    EXPECT_EQ(current_memory_pool(allocator), pool.number());
    EXPECT_EQ(current_memory_pool(another), 0);
    {
      const PoolScope nothing(nullptr);
      EXPECT_EQ(current_memory_pool(allocator), pool.number());
      const PoolScope nested(&inner);
      EXPECT_EQ(current_memory_pool(allocator), inner.number());
    }
    EXPECT_EQ(current_memory_pool(allocator), pool.number());
  }
  EXPECT_EQ(current_memory_pool(allocator), 0);
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
