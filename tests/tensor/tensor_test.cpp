#include "megatron/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"

namespace megatron {
namespace {

using testing::ElementsAre;

TEST(TensorTest, ReshapeAndSliceShareMemory) {
  Tensor x = tensor_of<float>({0, 1, 2, 3, 4, 5}, {3, 2});
  Tensor tail = x.slice(1, 2);
  EXPECT_EQ(tail.shape(), Shape({2, 2}));
  tail.span<float>()[0] = 9;
  EXPECT_THAT(x.reshape({6}).span<float>(), ElementsAre(0, 1, 9, 3, 4, 5));
  EXPECT_FALSE(x.is_sole_owner());
}

TEST(TensorTest, RefusesWrongReshapeAndSlice) {
  const Tensor x = zeros({3, 2}, DType::kFloat32, {});
  EXPECT_THROW(x.reshape({4}), ShapeError);
  EXPECT_THROW(x.slice(2, 2), ShapeError);
  EXPECT_THROW(x.item(), ShapeError);
}

TEST(TensorTest, EmptyTensorsWork) {
  Tensor x = zeros({0, 4}, DType::kFloat32, {});
  add_inplace(x, x);
  EXPECT_EQ(cast(x, DType::kBFloat16).numel(), 0);
  EXPECT_THAT(sum_leading(x).span<float>(), ElementsAre(0, 0, 0, 0));
}

TEST(TensorTest, CopiesAreIndependent) {
  Tensor x = tensor_of<float>({1, 2}, {2});
  const Tensor y = copied(x);
  x.span<float>()[0] = 5;
  EXPECT_THAT(y.span<float>(), ElementsAre(1, 2));
}

TEST(TensorTest, CastsAndSums) {
  const Tensor x = tensor_of<float>({1, 2, 3, 4}, {2, 2});
  EXPECT_THAT(sum_leading(x).span<float>(), ElementsAre(4, 6));
  const Tensor half = cast(x, DType::kBFloat16);
  EXPECT_EQ(half.bytes(), 8);
  EXPECT_THAT(cast(half, DType::kFloat32).span<float>(), ElementsAre(1, 2, 3, 4));
  Tensor sum = copied(x);
  add_inplace(sum, half, 0.5f);
  EXPECT_THAT(sum.span<float>(), ElementsAre(1.5f, 3, 4.5f, 6));
}

TEST(TensorTest, CountsItsMemoryUnderTheOpenCategory) {
  const Device device{DeviceType::kCpu, 77};
  const Stream stream{device};
  const MemoryScope scope(MemoryCategory::kOptimizer);
  {
    const Tensor x({16}, DType::kFloat32, stream);
    EXPECT_EQ(allocator_of(device).stats().by_category[size_t(MemoryCategory::kOptimizer)], 64);
  }
  EXPECT_EQ(allocator_of(device).stats().allocated_bytes, 0);
}

TEST(TensorTest, MemoryComesAndGoesForAllTensorsThatShareIt) {
  const Device device{DeviceType::kCpu, 78};
  const auto allocated = [&] { return allocator_of(device).stats().allocated_bytes; };
  Tensor whole({32}, DType::kFloat32, Stream{device});
  whole.drop_memory();
  EXPECT_EQ(allocated(), 0);
  const Tensor row = whole.slice(16, 16).reshape({2, 8});  // a place, not an access
  EXPECT_EQ(row.shape(), Shape({2, 8}));
  EXPECT_THROW((void)row.view(), InternalError);

  whole.take_memory();
  EXPECT_TRUE(row.has_memory());
  EXPECT_EQ(allocated(), 128);
  EXPECT_EQ(row.view().as<float>(), whole.view().as<float>() + 16);
}

TEST(TensorTest, AnAccessMayBringTheElements) {
  Tensor x = tensor_of<float>({1, 2}, {2});
  const Tensor part = x.slice(1, 1);
  x.drop_memory();
  int calls = 0;
  x.before_access([&] {
    ++calls;
    x.before_access(nullptr);  // it may end itself
    x.take_memory();
    x.span<float>()[1] = 7;
  });
  EXPECT_EQ(part.item(), 7);
  EXPECT_EQ(part.item(), 7);
  EXPECT_EQ(calls, 1);
}

TEST(TensorTest, DroppedElementsAreMadeAtTheNextAccess) {
  const Device device{DeviceType::kCpu, 79};
  const auto allocated = [&] { return allocator_of(device).stats().allocated_bytes; };
  int calls = 0;
  {
    Tensor x = full({32}, 1.0f, DType::kFloat32, Stream{device});
    const Tensor part = x.slice(8, 1);
    x.drop_until_access([&] {
      ++calls;
      return full({2, 16}, 3.0f, DType::kFloat32, Stream{device});
    });
    EXPECT_EQ(allocated(), 0);
    EXPECT_EQ(part.item(), 3);
    EXPECT_EQ(x.slice(31, 1).item(), 3);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(allocated(), 128);
    x.drop_until_access([&] { return full({3}, 3.0f, DType::kFloat32, Stream{device}); });
    EXPECT_THROW((void)x.view(), InternalError);  // other bytes
  }
  // Without an access nothing is made.
  {
    Tensor x = full({32}, 1.0f, DType::kFloat32, Stream{device});
    x.drop_until_access([&] {
      ++calls;
      return Tensor();
    });
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(allocated(), 0);
}

}  // namespace
}  // namespace megatron
