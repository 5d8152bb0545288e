#include "megatron/device/dry_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "megatron/device/trace.h"

namespace megatron {

void PrintTo(const MemoryUse& use, std::ostream* out) {
  *out << name_of(use.category) << " " << use.purpose << " " << use.bytes;
}

namespace {

using testing::ElementsAre;

constexpr auto kKept = MemoryCategory::kActivations;
constexpr auto kScratch = MemoryCategory::kWorkspace;

void* taken(const DryDevice& device, int64_t bytes, MemoryCategory category = kKept) {
  return allocator_of(device.get()).allocate(bytes, category);
}
void give(const DryDevice& device, void* block) { allocator_of(device.get()).release(block); }

TEST(DryMemoryTest, BlocksAreAsLargeAsThoseOfTheDeviceItStandsFor) {
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda}) {
    const DryDevice device(type);
    const MemorySource source =
        type == DeviceType::kCpu ? MemorySource::cpu() : MemorySource::cuda();
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{5} << 20}) {
      void* const block = taken(device, bytes);
      EXPECT_EQ(allocator_of(device.get()).stats().allocated_bytes, source.block_bytes(bytes));
      EXPECT_TRUE(is_dry_memory(block));
      give(device, block);
    }
  }
}

TEST(DryMemoryTest, ThereIsMoreOfItThanAnyMachineHas) {
  const DryDevice device(DeviceType::kCuda);
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(taken(device, int64_t{1} << 40));
  EXPECT_EQ(allocator_of(device.get()).stats().allocated_bytes, int64_t{100} << 40);
  for (void* block : blocks) give(device, block);
}

TEST(DryMemoryTest, DevicesOfTwoOwnersDiffer) {
  const DryDevice first(DeviceType::kCpu);
  const DryDevice second(DeviceType::kCpu);
  EXPECT_NE(first.get(), second.get());
  EXPECT_FALSE(first.get().has_host_memory());
  EXPECT_EQ(DryDevice(DeviceType::kCuda).get().str(), "dry cuda:2");
}

TEST(DryMemoryTest, CopiesMoveNothing) {
  const DryDevice device(DeviceType::kCuda);
  const OwnedStream stream(device.get());
  void* const block = taken(device, 8);
  int64_t number = 7;
  copy_bytes(block, &number, sizeof number, stream.get());
  zero_bytes(block, sizeof number, stream.get());
  copy_bytes(&number, block, sizeof number, stream.get());
  copy_bytes(&number, block, sizeof number, Stream{});
  synchronize(stream.get());
  EXPECT_EQ(number, 7);
  give(device, block);
}

// Ranges: forward [a 100, b 50 (freed)], backward [c 200].
TEST(MemoryLogTest, FindsThePeakAndWhoseItIs) {
  const DryDevice device(DeviceType::kCpu);
  EXPECT_EQ(enclosing_work(), nullptr);
  const MemoryLog log(device.get());
  void* parameters = nullptr;
  {
    const MemoryScope scope(MemoryCategory::kParameters, "parameters");
    parameters = taken(device, 64, current_memory_category());
  }
  void* kept = nullptr;
  const char* kept_part = nullptr;
  {
    const MemoryPart part("layer 3");
    const TraceRange range("linear");
    kept = taken(device, 128);
    kept_part = enclosing_work();  // as an op does for its backward pass
    give(device, taken(device, 64, kScratch));
  }
  void* gradient = nullptr;
  {
    const TraceRange pass("backward");
    const TraceRange whole(kept_part);
    const TraceRange range("linear");
    gradient = taken(device, 256);
  }
  give(device, kept);
  give(device, gradient);
  const MemoryPeak peak = log.peak();
  EXPECT_EQ(peak.bytes, 64 + 128 + 256);
  EXPECT_EQ(peak.when, "backward of layer 3");
  EXPECT_THAT(peak.uses, ElementsAre(MemoryUse{MemoryCategory::kParameters, "parameters", 64},
                                     MemoryUse{kKept, "layers: linear", 128 + 256}));
  EXPECT_EQ(log.host_peak().bytes, 0);
  give(device, parameters);
}

TEST(MemoryLogTest, LooksForPeaksFromItsBeginningOn) {
  const DryDevice device(DeviceType::kCpu);
  MemoryLog log(device.get());
  void* const kept = taken(device, 64);
  give(device, taken(device, 1024));
  log.begin();
  {
    const TraceRange range("output_layer");
    give(device, taken(device, 128));
  }
  EXPECT_EQ(log.peak().bytes, 64 + 128);
  EXPECT_EQ(log.peak().when, "loss");
  give(device, kept);
}

TEST(MemoryLogTest, CountsTheHostApart) {
  const DryDevice device(DeviceType::kCuda);
  MemoryLog log(device.get());
  {
    const MemoryScope scope(MemoryCategory::kOptimizer, "on their way");
    const PinnedBuffer buffer(4096, device.get());
    EXPECT_EQ(std::to_integer<int>(buffer.data()[4095]), 0);
  }
  EXPECT_EQ(log.peak().bytes, 0);
  EXPECT_THAT(log.host_peak().uses,
              ElementsAre(MemoryUse{MemoryCategory::kOptimizer, "on their way", 4096}));
}

}  // namespace
}  // namespace megatron
