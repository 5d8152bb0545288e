#include "megatron/autograd/delayed_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/autograd/recompute.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Tensor scalar(float value) { return tensor_of<float>({value}, {1}); }

// y = w x; the gradient of w may come later.
Variable product(const Variable& x, const Variable& w) {
  const float xv = x.data().span<float>()[0];
  const float wv = w.data().span<float>()[0];
  return record("product", scalar(xv * wv), {x, w},
                [xv, wv, sink = w.grad_sink()](const Tensor& dy, const Wants&) -> Grads {
                  const float g = dy.span<float>()[0];
                  Tensor dw = DelayedGradients::now_or_later(sink, [sink, dw = g * xv] {
                    if (!sink) return scalar(dw);
                    sink.main_grad().span<float>()[0] += dw;
                    return Tensor();
                  });
                  return {scalar(g * wv), dw};
                });
}

Variable leaf_with_main_grad(float value) {
  Variable leaf = Variable::leaf(scalar(value));
  leaf.set_main_grad(scalar(0));
  return leaf;
}

TEST(DelayedGradientsTest, WeightsGetTheirGradientsInRunOnly) {
  const Variable x = Variable::leaf(scalar(2));
  const Variable w = leaf_with_main_grad(3);
  const Variable v = leaf_with_main_grad(5);
  std::vector<std::string> delivered;
  Variable(w).on_gradient([&] { delivered.emplace_back("w"); });
  Variable(v).on_gradient([&] { delivered.emplace_back("v"); });

  DelayedGradients later;
  {
    const DelayedGradients::Scope scope(later);
    backward(product(product(x, w), v), scalar(1));
  }
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(15));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(0));
  EXPECT_THAT(v.grad().span<float>(), ElementsAre(0));
  EXPECT_THAT(delivered, IsEmpty());

  later.run();
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(10));
  EXPECT_THAT(v.grad().span<float>(), ElementsAre(6));
  EXPECT_THAT(delivered, ElementsAre("v", "w"));  // in the order of the backward pass

  later.run();  // each gradient once
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(10));
}

TEST(DelayedGradientsTest, OpsOutsideAScopeAddAtOnce) {
  const Variable w = leaf_with_main_grad(3);
  int delivered = 0;
  Variable(w).on_gradient([&] { ++delivered; });
  DelayedGradients later;
  { const DelayedGradients::Scope scope(later); }
  backward(product(Variable(scalar(2)), w), scalar(1));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(2));
  EXPECT_EQ(delivered, 1);
}

TEST(DelayedGradientsTest, AGradientOfItsOwnIsNotDelayed) {
  const Variable w = Variable::leaf(scalar(3));
  DelayedGradients later;
  const DelayedGradients::Scope scope(later);
  backward(product(Variable(scalar(2)), w), scalar(1));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(2));
}

TEST(DelayedGradientsTest, ARecomputedRegionDelaysToo) {
  RandomState random(1);
  const Variable x = Variable::leaf(scalar(2));
  const Variable w = leaf_with_main_grad(3);
  int delivered = 0;
  Variable(w).on_gradient([&] { ++delivered; });
  DelayedGradients later;
  {
    const DelayedGradients::Scope scope(later);
    backward(recompute([&](const Variable& input) { return product(input, w); }, x, random),
             scalar(1));
  }
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(3));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(0));
  EXPECT_EQ(delivered, 0);
  later.run();
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(2));
  EXPECT_EQ(delivered, 1);
}

}  // namespace
}  // namespace megatron
