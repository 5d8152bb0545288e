#include "megatron/ops/elementwise.h"

#include <cmath>

#include "megatron/ops/tanh.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

TEST(ElementwiseTest, Add) {
  check({.name = "add",
         .inputs = {random_normal({3, 5}, {.seed = 1}), random_normal({3, 5}, {.seed = 2})},
         .op = [](const auto& in) { return add(in[0], in[1]); }});
}

TEST(ElementwiseTest, AddOfTwoDtypesIsFp32) {
  const Tensor x = random_normal({2, 3}, {.seed = 1, .dtype = DType::kBFloat16});
  const Tensor z = random_normal({2, 3}, {.seed = 2});
  const Variable a = Variable::leaf(x);
  const Variable b = Variable::leaf(z);
  const Variable y = add(a, b);
  EXPECT_EQ(y.dtype(), DType::kFloat32);
  backward(y, full({2, 3}, 2.0f, DType::kFloat32, Stream{}));
  EXPECT_EQ(a.grad().dtype(), DType::kBFloat16);
  EXPECT_EQ(b.grad().dtype(), DType::kFloat32);
}

TEST(ElementwiseTest, AddOfOneVariableTwiceSumsItsGradients) {
  const Variable x = Variable::leaf(random_normal({4}, {.seed = 1}));
  backward(add(x, x), full({4}, 1.0f, DType::kFloat32, Stream{}));
  expect_identical(x.grad(), full({4}, 2.0f, DType::kFloat32, Stream{}));
}

TEST(ElementwiseTest, Scale) {
  check({.name = "scale", .inputs = {random_normal({7}, {.seed = 1})}, .op = [](const auto& in) {
           return scale(in[0], -2.5f);
         }});
}

TEST(ElementwiseTest, ScaleColumns) {
  for (const Shape& shape : {Shape{2, 3, 8}, Shape{3, 1}, Shape{2, 19}}) {
    const int64_t h = shape[-1];
    check({.name = "scale_columns " + shape.str(),
           .inputs = {random_normal(shape, {.seed = 1}), random_normal({h}, {.seed = 2})},
           .op = [](const auto& in) { return scale_columns(in[0], in[1]); },
           .expected =
               [h](const auto& in) {
                 Tensor y = copied(in[0]);
                 for (int64_t i = 0; i < y.numel(); ++i) {
                   y.template span<float>()[static_cast<size_t>(i)] =
                       static_cast<float>(element(in[0], i) * element(in[1], i % h));
                 }
                 return y;
               }});
  }
}

TEST(ElementwiseTest, SoftCap) {
  check({.name = "soft_cap",
         .inputs = {random_normal({3, 7}, {.seed = 1, .stddev = 3})},
         .op = [](const auto& in) { return soft_cap(in[0], 0.5f, 2); },
         .expected =
             [](const auto& in) {
               Tensor y = copied(in[0]);
               for (float& value : y.template span<float>()) {
                 value = static_cast<float>(2 * std::tanh(static_cast<double>(value) * 0.5 / 2));
               }
               return y;
             }});
}

TEST(ElementwiseTest, CastReturnsTheGradientInTheDtypeOfItsInput) {
  const Variable x = Variable::leaf(random_normal({2, 3}, {.seed = 1}));
  const Variable y = cast(x, DType::kBFloat16);
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  backward(y, full({2, 3}, 3.0f, DType::kBFloat16, Stream{}));
  expect_identical(x.grad(), full({2, 3}, 3.0f, DType::kFloat32, Stream{}));
}

TEST(ElementwiseTest, ReshapeSharesMemory) {
  const Variable x = Variable::leaf(random_normal({2, 6}, {.seed = 1}));
  const Variable y = reshape(x, {3, 4});
  EXPECT_EQ(y.data().view().data, x.data().view().data);
  backward(y, full({3, 4}, 1.0f, DType::kFloat32, Stream{}));
  EXPECT_EQ(x.grad().shape(), (Shape{2, 6}));
}

TEST(ElementwiseTest, RowOfATensor) {
  check({.name = "row",
         .inputs = {random_normal({3, 2, 5}, {.seed = 1})},
         .op = [](const auto& in) { return row(in[0], 1); }});
}

TEST(ElementwiseTest, Tanh) {
  check({.name = "tanh",
         .inputs = {random_normal({4, 7}, {.seed = 1})},
         .op = [](const auto& in) { return tanh(in[0]); },
         .expected =
             [](const std::vector<Tensor>& in) {
               Tensor y = copied(in[0]);
               for (float& value : y.span<float>()) {
                 value = static_cast<float>(std::tanh(static_cast<double>(value)));
               }
               return y;
             }});
}

TEST(ElementwiseTest, EmptyTensors) {
  const Variable x = Variable::leaf(random_normal({0, 6}, {.seed = 1}));
  backward(add(scale(x, 2), x), Tensor({0, 6}, DType::kFloat32, Stream{}));
  EXPECT_EQ(x.grad().shape(), (Shape{0, 6}));
}

}  // namespace
}  // namespace megatron
