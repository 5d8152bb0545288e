#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/device/cuda/check.h"
#include "megatron/device/memory.h"
#include "megatron/device/readback.h"
#include "megatron/device/staging.h"
#include "megatron/device/stream.h"
#include "megatron/device/trace.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr int64_t kBytes = 1 << 20;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
};

TEST_F(CudaDeviceTest, HasProperties) {
  const cuda::Properties found = cuda::properties(0);
  EXPECT_FALSE(found.name.empty());
  EXPECT_GT(found.num_multiprocessors, 0);
  EXPECT_GT(found.memory_bytes, int64_t{1} << 30);
  const cuda::FreeMemory memory = cuda::free_memory(0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

TEST_F(CudaDeviceTest, ADeviceThatIsNotThereIsNamed) {
  try {
    const OwnedStream stream({DeviceType::kCuda, 999});
    FAIL() << "expected DeviceError";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:999 does not exist"), std::string::npos)
        << error.what();
  }
}

TEST_F(CudaDeviceTest, AFailedCallTellsWhereAndWhy) {
  try {
    MG_CUDA(cudaSetDevice(999));
    FAIL() << "expected DeviceError";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    for (const char* part : {"cudaSetDevice(999)", "device_test.cpp", "cudaErrorInvalidDevice"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  MG_CUDA(cudaGetLastError());  // the failure is forgotten
}

TEST_F(CudaDeviceTest, CopiesAndZerosInStreamOrder) {
  const OwnedStream stream(kGpu);
  CachingAllocator allocator(kGpu);
  void* block = allocator.allocate(kBytes, MemoryCategory::kActivations);
  const PinnedBuffer from(kBytes, kGpu);
  const PinnedBuffer to(kBytes, kGpu);
  std::memset(from.data(), 7, kBytes);
  std::memset(to.data(), 1, kBytes);
  copy_bytes(block, from.data(), kBytes, stream.get());
  zero_bytes(block, kBytes / 2, stream.get());
  copy_bytes(to.data(), block, kBytes, stream.get());
  synchronize(stream.get());
  EXPECT_EQ(to.data()[0], std::byte{0});
  EXPECT_EQ(to.data()[kBytes / 2 - 1], std::byte{0});
  EXPECT_EQ(to.data()[kBytes / 2], std::byte{7});
  EXPECT_EQ(to.data()[kBytes - 1], std::byte{7});
  allocator.release(block);
}

TEST_F(CudaDeviceTest, EventsOrderStreamsAndMeasureTime) {
  const OwnedStream first(kGpu);
  const OwnedStream second(kGpu);
  CachingAllocator allocator(kGpu);
  void* block = allocator.allocate(kBytes, MemoryCategory::kActivations);
  const PinnedBuffer to(kBytes, kGpu);
  Event begin(kGpu);
  Event end(kGpu);
  begin.record(first.get());
  for (int i = 0; i < 100; ++i) zero_bytes(block, kBytes, first.get());
  end.record(first.get());
  end.hold_back(second.get());
  copy_bytes(to.data(), block, kBytes, second.get());
  synchronize(second.get());
  EXPECT_TRUE(end.is_done());
  EXPECT_GT(end.ms_since(begin), 0.0);
  EXPECT_EQ(to.data()[kBytes - 1], std::byte{0});
  allocator.release(block);
}

TEST_F(CudaDeviceTest, UploadsWaitForNothingButTheirTurn) {
  const OwnedStream stream(kGpu);
  CachingAllocator allocator(kGpu);
  constexpr int64_t kLarge = int64_t{1} << 30;
  auto* const busy = allocator.allocate(kLarge, MemoryCategory::kActivations);
  auto* const block =
      static_cast<std::byte*>(allocator.allocate(8 * kBytes, MemoryCategory::kActivations));
  std::vector<std::byte> from(kBytes);
  StagingRing ring(kGpu, 4);
  for (int64_t i = 0; i < 4; ++i) ring.upload(block, from.data(), kBytes, stream.get());  // pinned
  synchronize(stream.get());
  Event end(kGpu);
  for (int i = 0; i < 200; ++i) zero_bytes(busy, kLarge, stream.get());  // tens of milliseconds
  for (int64_t i = 0; i < 4; ++i) {
    std::memset(from.data(), static_cast<int>(i + 1), kBytes);
    ring.upload(block + i * kBytes, from.data(), kBytes, stream.get());
  }
  end.record(stream.get());
  EXPECT_FALSE(end.is_done()) << "the host waited for the work before the copies";
  for (int64_t i = 4; i < 8; ++i) {  // every buffer a second time
    std::memset(from.data(), static_cast<int>(i + 1), kBytes);
    ring.upload(block + i * kBytes, from.data(), kBytes, stream.get());
  }
  const PinnedBuffer to(8 * kBytes, kGpu);
  copy_bytes(to.data(), block, 8 * kBytes, stream.get());
  synchronize(stream.get());
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(to.data()[i * kBytes], std::byte(i + 1));
    EXPECT_EQ(to.data()[(i + 1) * kBytes - 1], std::byte(i + 1));
  }
  allocator.release(block);
  allocator.release(busy);
}

TEST_F(CudaDeviceTest, ReadbacksArriveWhileTheStreamGoesOn) {
  const OwnedStream stream(kGpu);
  CachingAllocator allocator(kGpu);
  void* const block = allocator.allocate(sizeof(double), MemoryCategory::kActivations);
  Readback readback(sizeof(double), kGpu);
  for (const double number : {1.5, 2.5}) {
    upload_bytes(block, &number, sizeof number, stream.get());
    readback.start(block, stream.get());
    zero_bytes(block, sizeof number, stream.get());
    double got = 0;
    std::memcpy(&got, readback.wait(), sizeof got);
    EXPECT_EQ(got, number);
  }
  readback.start(block, stream.get());  // the destructor waits
  allocator.release(block);
}

TEST_F(CudaDeviceTest, AllocatorReusesAndReportsExhaustion) {
  CachingAllocator allocator(kGpu);
  void* first = allocator.allocate(3 * kBytes, MemoryCategory::kActivations);
  allocator.release(first);
  EXPECT_EQ(allocator.allocate(2 * kBytes, MemoryCategory::kActivations), first);
  EXPECT_EQ(allocator.stats().num_driver_allocations, 1);
  EXPECT_THROW(allocator.allocate(int64_t{1} << 50, MemoryCategory::kActivations), DeviceError);
  MG_CUDA(cudaGetLastError());  // the refusal is forgotten
  allocator.release(first);
}

TEST_F(CudaDeviceTest, RangesAreTimedOnTheGpu) {
  const OwnedStream stream(kGpu);
  CachingAllocator allocator(kGpu);
  constexpr int64_t kLarge = int64_t{1} << 30;  // a gigabyte takes a GPU above 0.1 ms
  void* const block = allocator.allocate(kLarge, MemoryCategory::kWorkspace);
  zero_bytes(block, kLarge, stream.get());  // the first use is slow
  Tracer tracer;
  {
    const TraceScope scope(&tracer);
    const TraceRange iteration("iteration");
    const TraceRange norm("layer_norm", stream.get());
    zero_bytes(block, kLarge, stream.get());
    const TraceRange linear("linear", stream.get());
    zero_bytes(block, kLarge, stream.get());
  }
  std::map<WorkKind, double> seconds = tracer.seconds_by_kind();
  EXPECT_GT(seconds[WorkKind::kElementwise], 1e-4);
  EXPECT_GT(seconds[WorkKind::kGemm], 1e-4);
  EXPECT_LT(seconds[WorkKind::kGemm], 0.1);
  const TemporaryDirectory directory;
  write_trace(directory.path() / "trace.json", std::vector{tracer.events()});
  const std::string text = read_text(directory.path() / "trace.json");
  EXPECT_NE(text.find("\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":1"), std::string::npos);
  EXPECT_NE(text.find("\"name\":\"linear\",\"cat\":\"gemm\",\"ph\":\"X\",\"pid\":0,\"tid\":1"),
            std::string::npos)
      << text;
  allocator.release(block);
}

}  // namespace
}  // namespace megatron
