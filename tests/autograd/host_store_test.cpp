#include "megatron/autograd/host_store.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "megatron/device/allocator.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kElements = int64_t{1} << 20;
constexpr int64_t kBytes = kElements * 4;
constexpr int kLayers = 4;

class HostStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    allocator().empty_cache();
    before_ = allocator().stats().allocated_bytes;
  }
  static CachingAllocator& allocator() { return allocator_of(stream_under_test().device); }
  // Bytes of the device that the test has taken.
  int64_t on_device() const { return allocator().stats().allocated_bytes - before_; }

  static Tensor made(int number) {
    return full({kElements}, static_cast<float>(number), DType::kFloat32, stream_under_test());
  }
  static void expect_made(const Tensor& x, int number) {
    const Tensor here = x.to(Stream{});
    for (const int64_t i : {int64_t{0}, kElements / 2, kElements - 1}) {
      EXPECT_EQ(here.span<float>()[static_cast<size_t>(i)], static_cast<float>(number))
          << number << " at " << i;
    }
  }

  // Stores a tensor for each layer; between them other work takes the memory that is free.
  static std::vector<Restore> forward(const HostStore& store, int microbatch) {
    const StoredForm form = store.new_pass();
    std::vector<Restore> restores;
    for (int layer = 0; layer < kLayers; ++layer) {
      restores.push_back(form(made(100 * microbatch + layer)));
      made(-1);
    }
    return restores;
  }
  static void backward(std::vector<Restore> restores, int microbatch) {
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const Tensor x = restores[static_cast<size_t>(layer)]();
      made(-1);
      expect_made(x, 100 * microbatch + layer);
    }
  }

 private:
  int64_t before_ = 0;
};

TEST_F(HostStoreTest, TensorsOfSeveralMicrobatchesComeBack) {
  const HostStore store(stream_under_test());
  std::vector<std::vector<Restore>> flights;
  for (int microbatch = 0; microbatch < 6; ++microbatch) {  // one forward, one backward
    flights.push_back(forward(store, microbatch));
    if (microbatch < 2) continue;
    const auto oldest = static_cast<size_t>(microbatch - 2);
    backward(std::exchange(flights[oldest], {}), microbatch - 2);
  }
  backward(std::exchange(flights[4], {}), 4);
  backward(std::exchange(flights[5], {}), 5);
  EXPECT_EQ(store.stats().allocated_bytes, 0);
  EXPECT_EQ(on_device(), 0);
}

TEST_F(HostStoreTest, TheDeviceKeepsTheLastAndTheHostAll) {
  const HostStore store(stream_under_test());
  std::vector<Restore> restores = forward(store, 1);
  EXPECT_EQ(on_device(), kBytes);
  EXPECT_EQ(store.stats().allocated_bytes, kLayers * kBytes);

  Tensor x = restores[3]();
  EXPECT_EQ(on_device(), 2 * kBytes);  // the one before is on its way
  EXPECT_EQ(store.stats().allocated_bytes, 2 * kBytes);
  x = Tensor();
  x = restores[2]();
  EXPECT_EQ(on_device(), 2 * kBytes);
  x = Tensor();
  x = restores[1]();
  x = Tensor();
  EXPECT_EQ(store.stats().allocated_bytes, 0);
  x = restores[0]();
  EXPECT_EQ(on_device(), kBytes);
  expect_made(x, 100);
}

TEST_F(HostStoreTest, LaterMicrobatchesUseTheSameHostMemory) {
  const HostStore store(stream_under_test());
  backward(forward(store, 0), 0);
  const MemoryStats first = store.stats();
  EXPECT_EQ(first.num_driver_allocations, kLayers);
  EXPECT_EQ(first.reserved_bytes, kLayers * kBytes);
  for (int microbatch = 1; microbatch < 4; ++microbatch) {
    backward(forward(store, microbatch), microbatch);
  }
  EXPECT_EQ(store.stats().num_driver_allocations, first.num_driver_allocations);
}

// A pass whose graph is dropped, before or within its backward pass.
TEST_F(HostStoreTest, APassThatIsGivenUpLeavesNothing) {
  const HostStore store(stream_under_test());
  forward(store, 0);
  EXPECT_EQ(store.stats().allocated_bytes, 0);
  EXPECT_EQ(on_device(), 0);
  {
    const std::vector<Restore> restores = forward(store, 1);
    expect_made(restores[3](), 103);
  }
  EXPECT_EQ(store.stats().allocated_bytes, 0);
  EXPECT_EQ(on_device(), 0);
}

// The graph may outlive the store.
TEST_F(HostStoreTest, TensorsComeBackWithoutTheirStore) {
  std::vector<Restore> restores;
  {
    const HostStore store(stream_under_test());
    restores = forward(store, 3);
  }
  backward(std::move(restores), 3);
}

}  // namespace
}  // namespace megatron
