#include "megatron/core/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "megatron/core/view.h"

namespace megatron {
namespace {

TEST(ShapeTest, CountsAndPrints) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape({2, 0, 3}).numel(), 0);
  EXPECT_EQ(Shape({2, 3}).numel(), 6);
  EXPECT_EQ(Shape({2, 3}).str(), "[2, 3]");
  EXPECT_EQ(Shape().str(), "[]");
}

TEST(ShapeTest, NegativeAxesCountFromTheEnd) {
  const Shape shape({4, 5, 6});
  EXPECT_EQ(shape[-1], 6);
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape.with(-2, 7), Shape({4, 7, 6}));
  EXPECT_THROW(shape[3], ShapeError);
  EXPECT_THROW(shape[-4], ShapeError);
}

TEST(ShapeTest, RefusesNegativeExtentsAndTooManyAxes) {
  EXPECT_THROW(Shape({2, -1}), ShapeError);
  EXPECT_THROW(Shape({1, 1, 1, 1, 1, 1, 1}), ShapeError);
}

TEST(ViewTest, ErrorsNameTheThingAndBothValues) {
  const float value = 0;
  const ConstView view{&value, {1}, DType::kFloat32};
  EXPECT_EQ(view.as<float>(), &value);
  EXPECT_THROW(view.as<int32_t>(), DtypeError);
  try {
    expect_shape({2, 3}, {3, 2}, "linear: x");
    FAIL() << "expected ShapeError";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "linear: x has shape [2, 3], expected [3, 2]");
  }
}

TEST(ErrorTest, ConfigErrorHoldsAllProblems) {
  const ConfigError error(std::vector<std::string>{"a is wrong", "b is wrong"});
  EXPECT_STREQ(error.what(), "a is wrong\nb is wrong");
}

TEST(ErrorTest, InvariantNamesTheClaim) {
  invariant(true, "never shown");
  EXPECT_THAT([] { invariant(false, "one is two"); },
              testing::ThrowsMessage<InternalError>(testing::HasSubstr("one is two")));
}

}  // namespace
}  // namespace megatron
