#include "megatron/autograd/variable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::ElementsAre;

// y = x + z, both gradients are dy itself: the case where careless accumulation corrupts.
Variable sum(const Variable& x, const Variable& z) {
  Tensor y = copied(x.data());
  add_inplace(y, z.data());
  return record("sum", y, {x, z}, [](const Tensor& dy, const Wants&) -> Grads { return {dy, dy}; });
}

// y = x * x.
Variable square(const Variable& x) {
  Tensor y = empty_like(x.data());
  for (int64_t i = 0; i < x.data().numel(); ++i) {
    const float value = x.data().span<float>()[static_cast<size_t>(i)];
    y.span<float>()[static_cast<size_t>(i)] = value * value;
  }
  return record("square", y, {x}, [x = x.data()](const Tensor& dy, const Wants&) -> Grads {
    Tensor dx = empty_like(x);
    for (size_t i = 0; i < static_cast<size_t>(x.numel()); ++i) {
      dx.span<float>()[i] = 2 * x.span<float>()[i] * dy.span<float>()[i];
    }
    return {dx};
  });
}

Tensor vector_of(std::vector<float> values) {
  return tensor_of(values, {static_cast<int64_t>(values.size())});
}

TEST(BackwardTest, SumsOverEveryUse) {
  const Variable x = Variable::leaf(vector_of({1, 2, 3}));
  const Variable y = sum(square(x), sum(x, x));  // x^2 + 2x
  backward(y, vector_of({1, 1, 10}));
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(4, 6, 80));
}

TEST(BackwardTest, SharedGradientsAreNotCorrupted) {
  const Variable x = Variable::leaf(vector_of({1}));
  const Variable z = Variable::leaf(vector_of({1}));
  const Tensor dy = vector_of({1});
  backward(sum(sum(x, z), sum(x, z)), dy);
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(2));
  EXPECT_THAT(z.grad().span<float>(), ElementsAre(2));
  EXPECT_THAT(dy.span<float>(), ElementsAre(1));
}

// x^2 and 2 x, in one node.
std::vector<Variable> square_and_double(const Variable& x) {
  Tensor doubled = copied(x.data());
  scale_inplace(doubled, 2);
  return record_outputs("square_and_double", {square(x.detached()).data(), doubled}, {x},
                        [x = x.data()](const std::vector<Tensor>& dys, const Wants&) -> Grads {
                          Tensor dx = zeros(x.shape(), x.dtype(), x.stream());
                          for (size_t i = 0; i < static_cast<size_t>(x.numel()); ++i) {
                            float& sum_of_both = dx.span<float>()[i];
                            if (dys[0].defined())
                              sum_of_both += 2 * x.span<float>()[i] * dys[0].span<float>()[i];
                            if (dys[1].defined()) sum_of_both += 2 * dys[1].span<float>()[i];
                          }
                          return {dx};
                        });
}

TEST(BackwardTest, AnOpMayHaveSeveralOutputs) {
  const Variable x = Variable::leaf(vector_of({1, 3}));
  const std::vector<Variable> both = square_and_double(x);
  EXPECT_THAT(both[0].data().span<float>(), ElementsAre(1, 9));
  EXPECT_THAT(both[1].data().span<float>(), ElementsAre(2, 6));
  // (x^2)^2 + 2x + 2x: the node runs once, when the gradients of all uses are there.
  backward(sum(square(both[0]), sum(both[1], both[1])), vector_of({1, 10}));
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(4 + 4, 10 * (4 * 27 + 4)));
}

TEST(BackwardTest, AnOutputThatNothingDependsOnGetsNoGradient) {
  for (const size_t used : {0u, 1u}) {
    const Variable x = Variable::leaf(vector_of({3}));
    backward(square_and_double(x)[used], vector_of({1}));
    EXPECT_THAT(x.grad().span<float>(), ElementsAre(used == 0 ? 6 : 2));
  }
}

TEST(BackwardTest, SeveralOutputsOfConstantsAreConstants) {
  const std::vector<Variable> both = square_and_double(Variable(vector_of({2})));
  EXPECT_FALSE(both[0].requires_grad());
  EXPECT_FALSE(both[1].requires_grad());
}

// Backward from all roots at once: an op below both runs once, with the sum of what comes.
TEST(BackwardTest, RunsFromSeveralRoots) {
  const Variable x = Variable::leaf(vector_of({3}));
  int calls = 0;
  const Variable shared =
      record("shared", copied(x.data()), {x}, [&calls](const Tensor& dy, const Wants&) -> Grads {
        ++calls;
        return {dy};
      });
  const std::vector<Variable> roots = {square(shared), sum(shared, shared)};
  const std::vector<Tensor> dys = {vector_of({1}), vector_of({10})};
  backward(roots, dys);
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(26));  // 2 * 3 + 2 * 10
  EXPECT_THAT(dys[1].span<float>(), ElementsAre(10));
}

TEST(BackwardTest, ARootMayLieBelowAnother) {
  const Variable x = Variable::leaf(vector_of({3}));
  const Variable y = square(x);
  const std::vector<Variable> roots = {y, sum(y, y), y, x};
  backward(roots,
           std::vector<Tensor>{vector_of({1}), vector_of({10}), vector_of({100}), vector_of({5})});
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(6 * 121 + 5));
}

TEST(BackwardTest, RootsWithoutGradientAreLeftOut) {
  const Variable x = Variable::leaf(vector_of({3}));
  const Variable constant(vector_of({7}));
  const std::vector<Variable> roots = {square(x), constant, Variable(), square(x)};
  backward(roots, std::vector<Tensor>{vector_of({1}), vector_of({1}), Tensor(), Tensor()});
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(6));
  backward(std::vector<Variable>{constant}, std::vector<Tensor>{vector_of({1})});  // nothing to do
}

TEST(BackwardTest, AccumulatesOverGraphs) {
  const Variable x = Variable::leaf(vector_of({3}));
  backward(square(x), vector_of({1}));
  backward(square(x), vector_of({1}));
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(12));
}

TEST(BackwardTest, AddsIntoTheMainGradient) {
  Variable x = Variable::leaf(vector_of({3}));
  const Tensor main = vector_of({100});
  x.set_main_grad(main);
  backward(square(x), vector_of({1}));
  EXPECT_THAT(main.span<float>(), ElementsAre(106));
  EXPECT_TRUE(static_cast<bool>(x.grad_sink()));
}

TEST(VariableTest, IsAnnouncedBeforeItIsLookedAt) {
  int looks = 0;
  Variable w = Variable::leaf(vector_of({1}));
  const Variable other = w;  // a handle on the same variable
  w.on_use([&] { ++looks; });
  EXPECT_EQ(looks, 0);
  EXPECT_EQ(other.data().numel(), 1);
  EXPECT_EQ(looks, 1);
  w.on_use(nullptr);
  EXPECT_EQ(other.data().numel(), 1);
  EXPECT_EQ(looks, 1);
}

TEST(VariableTest, OpsOfItAreAnnouncedInBothDirections) {
  std::string events;
  Variable w = Variable::leaf(vector_of({3}));
  w.on_op([&](bool is_recorded) { events += is_recorded ? 'r' : 'n'; });
  w.on_gradient([&] { events += 'g'; });
  {
    const NoGrad no_grad;
    (void)square(w);
  }
  const Variable y = square(square(w));  // the second op has another input
  EXPECT_EQ(events, "nr");
  backward(y, vector_of({1}));
  EXPECT_EQ(events, "nrg");
  w.on_op(nullptr);
  (void)square(w);
  EXPECT_EQ(events, "nrg");
}

TEST(BackwardTest, ConstantsRecordNothing) {
  const Variable x(vector_of({3}));
  EXPECT_FALSE(square(x).requires_grad());
  EXPECT_FALSE(static_cast<bool>(x.grad_sink()));
  const NoGrad no_grad;
  EXPECT_FALSE(square(Variable::leaf(vector_of({3}))).requires_grad());
}

TEST(BackwardTest, RunsAGraphOnce) {
  const Variable y = square(Variable::leaf(vector_of({3})));
  backward(y, vector_of({1}));
  EXPECT_THROW(backward(y, vector_of({1})), InternalError);
}

TEST(BackwardTest, RefusesAGradientOfAnotherShape) {
  const Variable y = square(Variable::leaf(vector_of({3})));
  EXPECT_THROW(backward(y, vector_of({1, 2})), ShapeError);
}

TEST(BackwardTest, FreesSavedActivationsAsItGoes) {
  const Variable x = Variable::leaf(vector_of({3}));
  Variable hidden = square(x);
  const Tensor saved = hidden.data();  // the second square saves its input
  const Variable y = square(hidden);
  hidden = Variable();
  EXPECT_FALSE(saved.is_sole_owner());
  backward(y, vector_of({1}));
  EXPECT_TRUE(saved.is_sole_owner());
}

TEST(BackwardTest, DeepGraphsNeedNoDeepStack) {
  Variable y = Variable::leaf(vector_of({1}));
  for (int i = 0; i < 200000; ++i) y = sum(y, Variable(vector_of({0})));
}

}  // namespace
}  // namespace megatron
