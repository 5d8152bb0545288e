#include "megatron/device/work_graph.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/device/memory.h"
#include "megatron/device/staging.h"
#include "megatron/device/stream.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr int64_t kBytes = 4096;

// Two blocks of a GPU, and bytes of the host that get there and back.
class WorkGraphCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
    use_device(kGpu);
    queue_.emplace(kGpu);
    from = allocator_of(kGpu).allocate(kBytes, MemoryCategory::kActivations);
    to = allocator_of(kGpu).allocate(kBytes, MemoryCategory::kActivations);
  }
  void TearDown() override {
    if (queue_) synchronize(stream());  // the next test has another stream, and gets the blocks
    allocator_of(kGpu).release(from);
    allocator_of(kGpu).release(to);
  }
  Stream stream() const { return queue_->get(); }

  void put(void* there, char value) const {
    const std::vector<char> bytes(kBytes, value);
    upload_bytes(there, bytes.data(), kBytes, stream());
  }
  std::vector<char> bytes_of(const void* there) const {
    std::vector<char> bytes(kBytes);
    copy_bytes(bytes.data(), there, kBytes, stream());
    synchronize(stream());
    return bytes;
  }

  void* from = nullptr;
  void* to = nullptr;

 private:
  std::optional<OwnedStream> queue_;
};

TEST_F(WorkGraphCudaTest, RunsWhenItIsLaunchedAndReadsWhatIsThereThen) {
  put(from, 1);
  put(to, 2);
  WorkGraph graph(stream(), [&] {
    EXPECT_TRUE(is_recording());
    copy_bytes(to, from, kBytes, stream());
  });
  EXPECT_FALSE(is_recording());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 2));
  graph.launch();
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 1));
  for (char value = 3; value < 6; ++value) {  // in the order of the stream's work
    put(from, value);
    graph.launch();
  }
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 5));
}

TEST_F(WorkGraphCudaTest, MayTakeMemory) {
  const MemoryPool pool(allocator_of(kGpu));
  void* block = nullptr;
  WorkGraph graph(stream(), [&] {
    block =
        allocator_of(kGpu).allocate(int64_t{64} << 20, MemoryCategory::kWorkspace, pool.number());
    copy_bytes(block, from, kBytes, stream());
    copy_bytes(to, block, kBytes, stream());
    allocator_of(kGpu).release(block);
  });
  put(from, 7);
  graph.launch();
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 7));
}

TEST_F(WorkGraphCudaTest, WhatCannotBeRecordedIsAnErrorAndTheStreamGoesOn) {
  put(from, 1);
  put(to, 2);
  const char byte = 3;
  EXPECT_THROW(WorkGraph(stream(), [&] { upload_bytes(from, &byte, 1, stream()); }), DeviceError);
  EXPECT_THROW(WorkGraph(stream(), [&] { synchronize(stream()); }), DeviceError);
  EXPECT_THROW(WorkGraph(stream(), [&] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_FALSE(is_recording());
  copy_bytes(to, from, kBytes, stream());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 1));
}

// As cuDNN before 9.16 does, past our own functions: the graph would read memory that is gone.
TEST_F(WorkGraphCudaTest, ACopyThatALibraryMakesFromTheHostIsRefusedWithARemedy) {
  std::vector<char> bytes(kBytes, 4);
  put(to, 2);
  EXPECT_EQ(message_of<DeviceError>([&] {
              const WorkGraph graph(
                  stream(), [&] { cuda::copy_async(to, bytes.data(), kBytes, stream().native); });
            }),
            "a library copies from host memory, which would change before the graph runs "
            "(cuDNN before 9.16 does if a sequence is no multiple of 128: use such a length, a "
            "newer cuDNN or --no-cuda-graph)");
  EXPECT_FALSE(is_recording());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kBytes, 2));
}

}  // namespace
}  // namespace megatron
