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

constexpr Device kWorkGraphGpu{DeviceType::kCuda, 0};
constexpr int64_t kWorkGraphBytes = 4096;

// Two blocks of a GPU, and bytes of the host that get there and back.
class WorkGraphCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
    use_device(kWorkGraphGpu);
    queue_.emplace(kWorkGraphGpu);
    from = allocator_of(kWorkGraphGpu).allocate(kWorkGraphBytes, MemoryCategory::kActivations);
    to = allocator_of(kWorkGraphGpu).allocate(kWorkGraphBytes, MemoryCategory::kActivations);
  }
  void TearDown() override {
    if (queue_) synchronize(stream());  // the next test has another stream, and gets the blocks
    allocator_of(kWorkGraphGpu).release(from);
    allocator_of(kWorkGraphGpu).release(to);
  }
  Stream stream() const { return queue_->get(); }

  void put(void* there, char value) const {
    const std::vector<char> bytes(kWorkGraphBytes, value);
    upload_bytes(there, bytes.data(), kWorkGraphBytes, stream());
  }
  std::vector<char> bytes_of(const void* there) const {
    std::vector<char> bytes(kWorkGraphBytes);
    copy_bytes(bytes.data(), there, kWorkGraphBytes, stream());
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
    copy_bytes(to, from, kWorkGraphBytes, stream());
  });
  EXPECT_FALSE(is_recording());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 2));
  graph.launch();
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 1));
  for (char value = 3; value < 6; ++value) {  // in the order of the stream's work
    put(from, value);
    graph.launch();
  }
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 5));
}

TEST_F(WorkGraphCudaTest, MayTakeMemory) {
  const MemoryPool pool(allocator_of(kWorkGraphGpu));
  void* block = nullptr;
  WorkGraph graph(stream(), [&] {
    block = allocator_of(kWorkGraphGpu)
                .allocate(int64_t{64} << 20, MemoryCategory::kWorkspace, pool.number());
    copy_bytes(block, from, kWorkGraphBytes, stream());
    copy_bytes(to, block, kWorkGraphBytes, stream());
    allocator_of(kWorkGraphGpu).release(block);
  });
  put(from, 7);
  graph.launch();
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 7));
}

TEST_F(WorkGraphCudaTest, WhatCannotBeRecordedIsAnErrorAndTheStreamGoesOn) {
  put(from, 1);
  put(to, 2);
  const char byte = 3;
  EXPECT_THROW(WorkGraph(stream(), [&] { upload_bytes(from, &byte, 1, stream()); }), DeviceError);
  EXPECT_THROW(WorkGraph(stream(), [&] { synchronize(stream()); }), DeviceError);
  EXPECT_THROW(WorkGraph(stream(), [&] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_FALSE(is_recording());
  copy_bytes(to, from, kWorkGraphBytes, stream());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 1));
}

// As cuDNN before 9.16 does, past our own functions: the graph would read memory that is gone.
TEST_F(WorkGraphCudaTest, ACopyThatALibraryMakesFromTheHostIsRefusedWithARemedy) {
  std::vector<char> bytes(kWorkGraphBytes, 4);
  put(to, 2);
  EXPECT_EQ(message_of<DeviceError>([&] {
              const WorkGraph graph(stream(), [&] {
                cuda::copy_async(to, bytes.data(), kWorkGraphBytes, stream().native);
              });
            }),
            "a library copies from host memory, which would change before the graph runs "
            "(cuDNN before 9.16 does if a sequence is no multiple of 128: use such a length, a "
            "newer cuDNN or --no-cuda-graph)");
  EXPECT_FALSE(is_recording());
  EXPECT_EQ(bytes_of(to), std::vector<char>(kWorkGraphBytes, 2));
}

}  // namespace
}  // namespace megatron
