#include "megatron/tensor/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/stream.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

class CudaTensorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  }
  static Stream stream() { return stream_under_test(); }
};

TEST_F(CudaTensorTest, CopiesThereAndBack) {
  const Tensor ids = random_ids({3, 5}, 100, 1);
  const Tensor there = ids.to(stream());
  EXPECT_EQ(there.stream().device, stream().device);
  expect_identical(there.to(Stream{}), ids);
  expect_identical(there.slice(1, 2).to(Stream{}), ids.slice(1, 2));
  const Tensor empty = zeros({0, 4}, DType::kFloat32, stream());
  EXPECT_EQ(empty.to(Stream{}).shape(), Shape({0, 4}));
}

TEST_F(CudaTensorTest, StaysWhereItIs) {
  const Tensor x = zeros({4}, DType::kFloat32, stream());
  EXPECT_EQ(x.to(stream()).view().data, x.view().data);
}

TEST_F(CudaTensorTest, MathHappensOnTheDevice) {
  const Tensor x = random_normal({70, 33}, {.seed = 2});
  const Tensor z = random_normal({70, 33}, {.seed = 3});
  Tensor y = copied(x.to(stream()));
  add_inplace(y, z.to(stream()), 0.5f);
  scale_inplace(y, 2.0f);
  Tensor want = copied(x);
  add_inplace(want, z, 0.5f);
  scale_inplace(want, 2.0f);
  expect_close(y.to(Stream{}), want);
  expect_close(cast(y, DType::kBFloat16).to(Stream{}), cast(want, DType::kBFloat16));
  expect_close(sum_leading(y).to(Stream{}), sum_leading(want),
               Tolerance{.relative = 1e-5, .absolute = 1e-5});
}

TEST_F(CudaTensorTest, ItemWaitsAndSpanRefuses) {
  Tensor x = full({1}, 2.5f, DType::kBFloat16, stream());
  EXPECT_EQ(x.item(), 2.5);
  EXPECT_EQ(zeros({}, DType::kFloat64, stream()).item(), 0.0);
  EXPECT_EQ(message_of<DeviceError>([&] { x.span<BFloat16>(); }),
            "span: tensor [1] is on cuda:0, which the host cannot read; read a copy, to(Stream{})");
}

}  // namespace
}  // namespace megatron
