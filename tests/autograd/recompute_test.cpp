#include "megatron/autograd/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;

Tensor one_value(float value) { return tensor_of<float>({value}, {1}); }

// y = w * x * (index of the microbatch's first sample), counting its calls.
Variable scaled(const Variable& x, const Variable& w, const RandomState& random, int& calls) {
  ++calls;
  const float factor = static_cast<float>(random.first_sample());
  const float xv = x.data().span<float>()[0];
  const float wv = w.data().span<float>()[0];
  return record("scaled", one_value(xv * wv * factor), {x, w},
                [xv, wv, factor](const Tensor& dy, const Wants&) -> Grads {
                  const float g = dy.span<float>()[0] * factor;
                  return {one_value(g * wv), one_value(g * xv)};
                });
}

TEST(RecomputeTest, ReplaysWithTheRandomStateOfTheForwardPass) {
  RandomState random(1);
  random.set_first_sample(5);
  int calls = 0;
  const Variable x = Variable::leaf(one_value(2));
  const Variable w = Variable::leaf(one_value(3));
  const Variable y =
      recompute([&](const Variable& input) { return scaled(input, w, random, calls); }, x, random);
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(y.data().span<float>(), ElementsAre(30));

  random.set_first_sample(99);  // another microbatch has begun meanwhile
  backward(y, one_value(1));
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(15));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(10));
  EXPECT_EQ(random.first_sample(), 99);
}

TEST(RecomputeTest, StoresItsInputInAnotherForm) {
  RandomState random(1);
  random.set_first_sample(5);
  int calls = 0;
  const Variable w = Variable::leaf(one_value(3));
  Variable x = Variable::leaf(one_value(2));
  std::vector<float> seen;
  const StoredForm form = [&](const Tensor& whole) -> Restore {
    EXPECT_EQ(calls, 0);  // what it does runs beside the region
    seen.push_back(whole.span<float>()[0]);
    return [&seen, packed = one_value(seen.back() + 0.5f)] {
      seen.push_back(packed.span<float>()[0]);
      return one_value(seen.back() - 0.5f);
    };
  };
  const Variable y = recompute(
      [&](const Variable& input) { return scaled(input, w, random, calls); }, x, random, form);
  EXPECT_THAT(y.data().span<float>(), ElementsAre(30));
  const Tensor held = x.data();
  x.release_data();
  EXPECT_TRUE(held.is_sole_owner());  // the graph keeps the packed form alone
  backward(y, one_value(1));
  EXPECT_THAT(seen, ElementsAre(2, 2.5f));
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(15));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(10));
}

TEST(RecomputeTest, TrainsParametersBelowAConstantInput) {
  RandomState random(1);
  random.set_first_sample(1);
  int calls = 0;
  const Variable w = Variable::leaf(one_value(3));
  const Variable y =
      recompute([&](const Variable& input) { return scaled(input, w, random, calls); },
                Variable(one_value(2)), random);
  backward(y, one_value(1));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(2));
}

// y = x z and x, both scaled: what a decoder layer does with an encoder's output.
std::vector<Variable> product_and_first(std::span<const Variable> xs, const Variable& w,
                                        const RandomState& random, int& calls) {
  const Variable first = scaled(xs[0], w, random, calls);
  return {scaled(first, xs[1], random, calls), first};
}

TEST(RecomputeTest, SeveralInputsAndOutputsAreThoseOfThePlainCall) {
  RandomState random(1);
  random.set_first_sample(5);
  struct Leaves {
    Variable x = Variable::leaf(one_value(1.3f));
    Variable encoded = Variable::leaf(one_value(0.7f));
    Variable w = Variable::leaf(one_value(3.1f));
  };
  // The encoder's output goes into two regions, and its gradient is the sum of both.
  const auto train = [&](const Leaves& leaves, bool recomputes, int& calls) {
    const Variable encoded = scaled(leaves.encoded, leaves.w, random, calls);
    const RecomputedFunction layer = [&](std::span<const Variable> xs) {
      return product_and_first(xs, leaves.w, random, calls);
    };
    const auto run = [&](const std::vector<Variable>& xs) {
      return recomputes ? recompute(layer, xs, random) : layer(xs);
    };
    const std::vector<Variable> first = run({leaves.x, encoded});
    const std::vector<Variable> second = run({first[0], encoded});
    const std::vector<Variable> roots = {second[0], first[1], second[1]};
    backward(roots, std::vector<Tensor>{one_value(0.3f), one_value(1.7f), Tensor()});
  };
  int plain_calls = 0;
  const Leaves plain;
  train(plain, false, plain_calls);
  EXPECT_EQ(plain_calls, 5);
  int calls = 0;
  const Leaves recomputed;
  train(recomputed, true, calls);
  EXPECT_EQ(calls, 9);  // the two layers of two ops twice, the encoder once
  const auto expect_same = [](const Variable& got, const Variable& want) {
    EXPECT_EQ(got.grad().span<float>()[0], want.grad().span<float>()[0]);
  };
  expect_same(recomputed.x, plain.x);
  expect_same(recomputed.encoded, plain.encoded);
  expect_same(recomputed.w, plain.w);
}

// y = x^2, of which the backward pass needs x alone.
Variable squared(const Variable& x) {
  const float xv = x.data().span<float>()[0];
  return record("squared", one_value(xv * xv), {x}, [x = x.data()](const Tensor& dy, const Wants&) {
    return Grads{one_value(2 * x.span<float>()[0] * dy.span<float>()[0])};
  });
}

TEST(DropUntilUsedTest, TheBackwardPassMakesTheResultOnce) {
  RandomState random(1);
  random.set_first_sample(5);
  int calls = 0;
  const Variable w = Variable::leaf(one_value(3));
  const Variable x = Variable::leaf(one_value(2));
  const auto make = [&w, &random, &calls, in = x.data()] {
    EXPECT_EQ(calls == 2, !grad_enabled());
    return scaled(Variable(in), w, random, calls).data();
  };
  const Variable y = scaled(x, w, random, calls);
  const Variable one = squared(y);
  const Variable other = squared(y);
  EXPECT_EQ(calls, 1);
  ++calls;
  drop_until_used(y, make, random);
  EXPECT_FALSE(y.data().has_memory());

  random.set_first_sample(99);  // another microbatch has begun meanwhile
  const std::vector<Variable> roots = {one, other};
  backward(roots, std::vector<Tensor>{one_value(1), one_value(10)});
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(random.first_sample(), 99);
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(11 * 2 * 30 * 15));
  EXPECT_THAT(w.grad().span<float>(), ElementsAre(11 * 2 * 30 * 10));
}

TEST(DropUntilUsedTest, KeepsResultsWithoutABackwardPass) {
  RandomState random(1);
  const NoGrad no_grad;
  const Variable y = squared(Variable(one_value(3)));
  drop_until_used(
      y, [] { return Tensor(); }, random);
  EXPECT_THAT(y.data().span<float>(), ElementsAre(9));
}

TEST(RecomputeTest, InputsWithoutGradientStayConstants) {
  RandomState random(1);
  random.set_first_sample(1);
  const Variable x = Variable::leaf(one_value(2));
  const Variable mask(one_value(3));
  std::vector<bool> required;
  const RecomputedFunction fn = [&](std::span<const Variable> xs) -> std::vector<Variable> {
    required = {xs[0].requires_grad(), xs[1].requires_grad(), xs[2].defined()};
    int calls = 0;
    return {scaled(xs[0], xs[1], random, calls)};
  };
  backward(recompute(fn, {x, mask, Variable()}, random)[0], one_value(1));
  EXPECT_THAT(required, ElementsAre(true, false, false));
  EXPECT_THAT(x.grad().span<float>(), ElementsAre(3));
}

TEST(RecomputeTest, IsThePlainCallWithoutGradients) {
  RandomState random(1);
  random.set_first_sample(1);
  int calls = 0;
  const NoGrad no_grad;
  const Variable w = Variable::leaf(one_value(3));
  recompute([&](const Variable& input) { return scaled(input, w, random, calls); },
            Variable(one_value(2)), random);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace megatron
