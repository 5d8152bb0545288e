#include "tests/ops/op_case.h"

#include <gtest/gtest-spi.h>

namespace megatron {
namespace {

// y = factor * x, whose backward pass multiplies by `claimed`.
OpFunction scaled(float factor, float claimed) {
  return [=](const std::vector<Variable>& inputs) {
    Tensor y = copied(inputs[0].data());
    scale_inplace(y, factor);
    return record("scaled", y, {inputs[0]}, [claimed](const Tensor& dy, const Wants&) -> Grads {
      Tensor dx = copied(dy);
      scale_inplace(dx, claimed);
      return {dx};
    });
  };
}

TEST(OpCaseTest, AcceptsARightGradient) {
  check({.name = "scaled",
         .inputs = {random_normal({3, 5}, {.seed = 1})},
         .op = scaled(3, 3),
         .reference = scaled(3, 3)});
}

TEST(OpCaseTest, RefusesAWrongGradient) {
  EXPECT_FATAL_FAILURE(
      check({.name = "scaled", .inputs = {random_normal({1}, {.seed = 1})}, .op = scaled(3, 2.9f)}),
      "central differences");
}

}  // namespace
}  // namespace megatron
