#include "megatron/training/microbatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

struct PairMicrobatch {
  Tensor tokens;
  Tensor loss_mask;
  std::vector<Tensor*> tensors() { return {&tokens, &loss_mask}; }
};

struct OtherMicrobatch {
  Tensor tokens;
  std::vector<Tensor*> tensors() { return {&tokens}; }
};

TEST(MicrobatchTest, HoldsTheStructOfItsTask) {
  const Microbatch batch =
      PairMicrobatch{.tokens = tensor_of(std::vector<int64_t>{3, 5}, {2}), .loss_mask = {}};
  EXPECT_EQ(batch.as<PairMicrobatch>().tokens.span<int64_t>()[1], 5);
  EXPECT_FALSE(batch.as<PairMicrobatch>().loss_mask.defined());
  EXPECT_EQ(batch.tensors().size(), 2U);
  EXPECT_THROW(batch.as<OtherMicrobatch>(), InternalError);
}

TEST(MicrobatchTest, AnEmptyOneHasUndefinedTensors) {
  const Microbatch batch;
  EXPECT_FALSE(batch.as<PairMicrobatch>().tokens.defined());
  EXPECT_TRUE(batch.tensors().empty());
  EXPECT_TRUE(batch.to(Stream{}).tensors().empty());
}

TEST(MicrobatchTest, ReplacesDefinedTensorsInACopy) {
  const Microbatch batch =
      PairMicrobatch{.tokens = tensor_of(std::vector<int64_t>{3, 5}, {2}), .loss_mask = {}};
  const Microbatch other =
      batch.mapped([](const Tensor& x) { return full(x.shape(), 1, DType::kFloat32, Stream{}); });
  EXPECT_EQ(other.as<PairMicrobatch>().tokens.span<float>()[1], 1);
  EXPECT_FALSE(other.as<PairMicrobatch>().loss_mask.defined());
  EXPECT_EQ(batch.as<PairMicrobatch>().tokens.span<int64_t>()[0], 3);
}

}  // namespace
}  // namespace megatron
