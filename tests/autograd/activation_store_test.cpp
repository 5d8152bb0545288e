#include "megatron/autograd/activation_store.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "megatron/device/allocator.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kSavedNumel = int64_t{1} << 20;
constexpr int64_t kSavedBytes = kSavedNumel * 4;
constexpr int kParts = 4;

Tensor filled(float value) {
  return full({kSavedNumel}, value, DType::kFloat32, stream_under_test());
}
void expect_filled(const Tensor& x, float value) {
  const Tensor here = x.to(Stream{});
  for (const int64_t i : {int64_t{0}, kSavedNumel / 2, kSavedNumel - 1}) {
    ASSERT_EQ(here.span<float>()[static_cast<size_t>(i)], value) << i;
  }
}

// y = x, and a saved tensor, which the backward pass checks: its elements are `value`.
Variable saving(const Variable& x, float value) {
  const Tensor saved = filled(value);
  return record("saving", copied(x.data()), {x},
                [saved, value](const Tensor& dy, const Wants&) -> Grads {
                  filled(-1);  // other work takes memory
                  expect_filled(saved, value);
                  return {dy};
                });
}

class ActivationStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    allocator().empty_cache();
    before_ = allocator().stats().allocated_bytes;
    store_.emplace(stream_under_test(), kSavedNumel, 1);
  }
  static CachingAllocator& allocator() { return allocator_of(stream_under_test().device); }
  // Tensors on the device that the test has made.
  int64_t on_device() const { return counted(allocator().stats().allocated_bytes); }
  int64_t peak_on_device() const { return counted(allocator().stats().peak_allocated_bytes); }
  int64_t on_host() const { return store_->stats().allocated_bytes / kSavedBytes; }

  // A part saves two tensors of its own. Its result, which the next part saves, is a third one.
  static Variable part(const Variable& x, float value) {
    const Variable y = record("result", copied(x.data()), {x},
                              [x = x.data()](const Tensor& dy, const Wants&) -> Grads {
                                expect_filled(x, 1);
                                return {dy};
                              });
    return saving(saving(y, value), value + 0.5f);
  }
  static constexpr int64_t kSaved = 2;

  Variable forward(int microbatch, bool leaves = false) {
    ActivationStore::Pass pass = store_->new_pass();
    Variable x = Variable::leaf(filled(1));
    for (int i = 0; i < kParts; ++i) {
      const NewTensors made;
      x = part(x, value_of(microbatch, i));
      filled(-1);
      pass.end_part(made, std::vector<Tensor>{x.data()});
    }
    return leaves ? pass.end_staying_part(x) : x;
  }
  static float value_of(int microbatch, int i) { return static_cast<float>(100 * microbatch + i); }
  static void run_backward(Variable y) {
    const Tensor dy = filled(2);
    backward(std::exchange(y, {}), dy);
  }

  std::optional<ActivationStore> store_;

 private:
  int64_t counted(int64_t bytes) const { return (bytes - before_) / kSavedBytes; }

  int64_t before_ = 0;
};

TEST_F(ActivationStoreTest, SeveralMicrobatchesComeBack) {
  std::vector<Variable> flights;
  for (int microbatch = 0; microbatch < 6; ++microbatch) {  // one forward, one backward
    flights.push_back(forward(microbatch, microbatch % 2 == 0));
    if (microbatch < 2) continue;
    run_backward(std::exchange(flights[static_cast<size_t>(microbatch - 2)], {}));
  }
  run_backward(std::exchange(flights[4], {}));
  run_backward(std::exchange(flights[5], {}));
  EXPECT_EQ(on_host(), 0);
  EXPECT_EQ(on_device(), 0);
}

// Between the passes the host has what parts saved, with the results before the last one.
TEST_F(ActivationStoreTest, TheHostHasWhatPartsSaved) {
  constexpr int64_t kAway = kParts * kSaved + kParts - 1;
  const Variable y = forward(1);
  EXPECT_EQ(on_host(), kAway);
  EXPECT_EQ(on_device(), 1 + 1 + kSaved + 1);  // x, the result; the last part, with its input
  Variable z = forward(2, true);
  EXPECT_EQ(on_host(), 2 * kAway);
  EXPECT_EQ(on_device(), 4);  // two of x, two results
  z = Variable();
  EXPECT_EQ(on_host(), kAway);
  EXPECT_EQ(on_device(), 2);
}

TEST_F(ActivationStoreTest, TheBackwardPassHasTwoPartsOnTheDevice) {
  Variable y = forward(1, true);
  allocator().reset_peaks();
  run_backward(std::exchange(y, {}));
  // The gradient, x and the tensor of other work; two parts, without what the first has freed.
  EXPECT_EQ(peak_on_device(), 3 + 2 * (kSaved + 1));
}

// The fewer parts are on their way, the more of those that stay are on the device.
TEST_F(ActivationStoreTest, PartsTravelBesideThoseThatStay) {
  constexpr int kBeside = 3;
  store_.emplace(stream_under_test(), kSavedNumel, kBeside);
  std::vector<int64_t> counts;
  Variable y;
  {
    ActivationStore::Pass pass = store_->new_pass();
    y = Variable::leaf(filled(1));
    for (int i = 0; i < kParts + kBeside; ++i) {
      const NewTensors made;
      y = part(y, value_of(1, i));
      if (i < kParts) {
        pass.end_part(made, std::vector<Tensor>{y.data()});
      } else {
        y = pass.end_staying_part(y);
      }
      counts.push_back(on_device());
    }
  }
  // x and the last result; before it two tensors of the first part, three of others.
  EXPECT_EQ(counts, (std::vector<int64_t>{4, 7, 10, 11, 11, 11, 11}));
  EXPECT_EQ(on_host(), kParts * kSaved + kParts - 1);
  allocator().reset_peaks();
  run_backward(std::exchange(y, {}));
  // The gradient and the tensor of other work; a part comes before one is freed.
  EXPECT_EQ(peak_on_device(), counts.back() + 2 + kSaved + 1);
  EXPECT_EQ(on_host(), 0);
  EXPECT_EQ(on_device(), 0);
}

TEST_F(ActivationStoreTest, LaterMicrobatchesUseTheSameHostMemory) {
  run_backward(forward(0));
  run_backward(forward(1));
  const MemoryStats first = store_->stats();
  for (int microbatch = 2; microbatch < 5; ++microbatch) run_backward(forward(microbatch));
  EXPECT_EQ(store_->stats().num_driver_allocations, first.num_driver_allocations);
  EXPECT_EQ(store_->stats().reserved_bytes, first.reserved_bytes);
}

// The graph may outlive the store.
TEST_F(ActivationStoreTest, TensorsComeBackWithoutTheirStore) {
  Variable y = forward(3);
  store_.reset();
  run_backward(std::exchange(y, {}));
}

TEST_F(ActivationStoreTest, SmallOnesAndConstantsStay) {
  ActivationStore::Pass pass = store_->new_pass();
  Tensor small, parameter;
  {
    const NewTensors made;
    small = Tensor({kSavedNumel - 1}, DType::kFloat64, stream_under_test());
    const MemoryScope scope(MemoryCategory::kParameters);
    parameter = filled(4);
    pass.end_part(made, {});
  }
  EXPECT_EQ(on_host(), 0);
  EXPECT_TRUE(small.has_memory());
  EXPECT_TRUE(parameter.has_memory());
}

// A tensor that the forward pass reads or writes while it leaves, or away, stays on the device.
TEST_F(ActivationStoreTest, AccessInTheForwardPassTakesOneTensorBack) {
  ActivationStore::Pass pass = store_->new_pass();
  std::vector<Tensor> saved;
  for (int i = 0; i < 2; ++i) {
    const NewTensors made;
    saved.push_back(filled(static_cast<float>(i)));
    saved.push_back(filled(static_cast<float>(i)));
    pass.end_part(made, {});
  }
  EXPECT_EQ(on_host(), 4);
  EXPECT_EQ(on_device(), 2);
  expect_filled(saved[0], 0);
  EXPECT_EQ(on_host(), 3);
  EXPECT_EQ(on_device(), 3);
  scale_inplace(saved[2], 5);
  EXPECT_EQ(on_host(), 2);
  {
    const NewTensors made;
    pass.end_part(made, {});
  }
  EXPECT_EQ(on_device(), 2);
  expect_filled(saved[2], 5);
  expect_filled(saved[3], 1);
  expect_filled(saved[1], 0);
}

// An op of the backward pass may write into what it saved, before the memory has left.
TEST_F(ActivationStoreTest, MemoryThatIsWrittenInTheBackwardPassDoesNotLeave) {
  std::vector<Tensor> saved;
  {
    ActivationStore::Pass pass = store_->new_pass();
    const NewTensors made;
    saved = {filled(1), filled(2)};
    pass.end_part(made, {});
  }
  scale_inplace(saved[0], 3);
  run_backward(forward(1));
  expect_filled(saved[0], 3);
  expect_filled(saved[1], 2);
  EXPECT_EQ(on_host(), 0);
}

// A view that outlives its part reads NaNs, where the host can look.
TEST_F(ActivationStoreTest, AStaleViewShows) {
  if (!stream_under_test().device.has_host_memory()) {
    GTEST_SKIP() << "reads memory after its release, which only the CPU's allocator allows";
  }
  ActivationStore::Pass pass = store_->new_pass();
  Tensor saved;
  const float* stale = nullptr;
  for (int i = 0; i < 2; ++i) {
    const NewTensors made;
    if (i == 0) {
      saved = filled(1);
      stale = std::as_const(saved).view().as<float>();
    }
    pass.end_part(made, {});
  }
  EXPECT_NE(*stale, 1.0f);
  expect_filled(saved, 1);
}

}  // namespace
}  // namespace megatron
