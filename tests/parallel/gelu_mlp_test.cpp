#include "megatron/parallel/tensor/gelu_mlp.h"

#include <utility>

#include "megatron/comm/threads.h"
#include "megatron/ops/bias_activation.h"
#include "megatron/ops/linear.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

// In: x, weight1, weight2 and, where there is one, bias1.
Variable bias_of(const std::vector<Variable>& in) { return in.size() > 3 ? in[3] : Variable(); }

Variable apply(const std::vector<Variable>& in) {
  return gelu_mlp(in[0], in[1], bias_of(in), in[2], {});
}

Variable in_plain_ops(const std::vector<Variable>& in) {
  const Variable wide = linear(in[0], in[1], Variable());
  const Variable y = bias_activation(wide, bias_of(in), Activation::kGeluTanh);
  return linear(y, in[2], Variable());
}

TEST(GeluMlpTest, IsTwoLinearLayersAroundGelu) {
  OpCase c{.name = "gelu_mlp",
           .inputs = {random_normal({3, 2, 5}, {.seed = 1}),
                      random_normal({7, 5}, {.seed = 2, .stddev = 0.3f}),
                      random_normal({5, 7}, {.seed = 3, .stddev = 0.3f})},
           .op = apply,
           .reference = in_plain_ops,
           .terms = 35};
  check(c);
  c.inputs.push_back(random_normal({7}, {.seed = 4, .stddev = 0.3f}));
  check(c);
}

TEST(GeluMlpTest, NoTokens) {
  OpCase c{.name = "gelu_mlp",
           .inputs = {random_normal({0, 2, 8}, {.seed = 1}), random_normal({16, 8}, {.seed = 2}),
                      random_normal({8, 16}, {.seed = 3}), random_normal({16}, {.seed = 4})},
           .op = apply,
           .reference = in_plain_ops};
  check(c);
}

TEST(GeluMlpTest, WithoutGradientsKeepsNothing) {
  const std::vector<Variable> in = {Variable::leaf(random_normal({3, 2, 5}, {.seed = 1})),
                                    Variable::leaf(random_normal({7, 5}, {.seed = 2})),
                                    Variable::leaf(random_normal({5, 7}, {.seed = 3})),
                                    Variable::leaf(random_normal({7}, {.seed = 4}))};
  const Variable want = apply(in);
  const NoGrad no_grad;
  const Variable got = apply(in);
  EXPECT_FALSE(got.requires_grad());
  expect_identical(got.data(), want.data());
}

TEST(GeluMlpTest, RefusesWeightsThatDoNotFit) {
  const auto of = [](const Shape& shape) { return Variable(random_normal(shape, {.seed = 1})); };
  EXPECT_EQ(message_of<ShapeError>([&] {
              apply({of({2, 1, 4}), of({8, 5}), of({4, 8})});
            }),
            "gelu_matmul: x has shape [2, 4], expected [2, 5]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              apply({of({2, 1, 4}), of({8, 4}), of({4, 8}), of({7})});
            }),
            "gelu_matmul: bias has shape [7], expected [8]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              apply({of({2, 1, 4}), of({8, 4}), of({4, 6})});
            }),
            "linear: weight has shape [4, 6], expected [4, 8]");
}

// Rank r has rows [r f/tp, (r + 1) f/tp) of weight1 and bias1, and those columns of weight2.
TEST(GeluMlpTest, RanksMatchOneRank) {
  constexpr int64_t kHidden = 6;
  constexpr int64_t kWide = 24;
  const Tensor x = random_normal({12, 2, kHidden}, {.seed = 1});
  const Tensor dy = random_normal({12, 2, kHidden}, {.seed = 2});
  const Tensor weight1 = random_normal({kWide, kHidden}, {.seed = 3});
  const Tensor columns = random_normal({kWide, kHidden}, {.seed = 4});  // weight2^T
  const Tensor bias1 = random_normal({kWide}, {.seed = 5});
  const auto transposed = [](const Tensor& matrix) {
    Tensor t({matrix.size(1), matrix.size(0)}, matrix.dtype(), matrix.stream());
    for (int64_t i = 0; i < t.numel(); ++i) {
      t.span<float>()[static_cast<size_t>(i)] =
          static_cast<float>(element(matrix, i % t.size(1) * matrix.size(1) + i / t.size(1)));
    }
    return t;
  };
  const std::vector<Variable> whole = {Variable::leaf(x), Variable::leaf(weight1),
                                       Variable::leaf(transposed(columns)), Variable::leaf(bias1)};
  const Variable want = apply(whole);
  backward(want, dy);

  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [sequence_parallel, by_pieces] :
         {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      comm::run_ranks(ranks, [&, sequence_parallel = sequence_parallel,
                              by_pieces = by_pieces](const comm::Group& world) {
        const TensorParallel tp{
            .group = world, .sequence_parallel = sequence_parallel, .overlaps_products = by_pieces};
        const auto part = [&](const Tensor& t) {
          const int64_t count = t.size(0) / ranks;
          return copied(t.slice(tp.rank() * count, count));
        };
        const auto of_sequence = [&](const Tensor& t) { return sequence_parallel ? part(t) : t; };
        const std::vector<Variable> in = {
            Variable::leaf(of_sequence(x)), Variable::leaf(part(weight1)),
            Variable::leaf(transposed(part(columns))), Variable::leaf(part(bias1))};
        const Variable y = gelu_mlp(in[0], in[1], in[3], in[2], tp);
        backward(y, of_sequence(dy));
        const Tolerance close{1e-5, 1e-5};
        expect_close(y.data(), of_sequence(want.data()), close, "y");
        expect_close(in[0].grad(), of_sequence(whole[0].grad()), close, "dx");
        expect_close(in[1].grad(), part(whole[1].grad()), close, "dweight1");
        expect_close(in[3].grad(), part(whole[3].grad()), close, "dbias1");
        expect_close(transposed(in[2].grad()), part(transposed(whole[2].grad())), close,
                     "dweight2");
      });
    }
  }
}

}  // namespace
}  // namespace megatron
