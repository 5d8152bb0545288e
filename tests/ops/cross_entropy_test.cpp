#include "megatron/ops/cross_entropy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/kernels/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

// The definition, in fp64; the first v of the columns are no padding.
Tensor cross_entropy_expected(const Tensor& logits, const Tensor& labels, double smoothing,
                              int64_t v) {
  const int64_t s = logits.size(0);
  const int64_t b = logits.size(1);
  const int64_t columns = logits.size(2);
  Tensor losses({s, b}, DType::kFloat32, Stream{});
  const double q = v > 1 ? smoothing * double(v) / double(v - 1) : 0;
  for (int64_t row = 0; row < s * b; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < v; ++k) sum += std::exp(element(logits, row * columns + k));
    double mean = 0;
    for (int64_t k = 0; k < v; ++k) {
      mean += (element(logits, row * columns + k) - std::log(sum)) / double(v);
    }
    const auto label = labels.span<int64_t>()[static_cast<size_t>(row % b * s + row / b)];
    const double nll = label < 0 ? 0 : std::log(sum) - element(logits, row * columns + label);
    losses.span<float>()[static_cast<size_t>(row)] =
        label < 0 ? 0.0f : static_cast<float>((1 - q) * nll - q * mean);
  }
  return losses;
}

// vocabulary: columns that are no padding; 0: all.
OpCase make_case(const Shape& shape, float smoothing, int64_t vocabulary = 0) {
  const int64_t v = vocabulary > 0 ? vocabulary : shape[2];
  Tensor labels = random_ids({shape[1], shape[0]}, v, 1);
  if (labels.numel() > 2) labels.span<int64_t>()[2] = -1;  // BERT's "not masked"
  return {.name = "cross_entropy " + shape.str(),
          .inputs = {random_normal(shape, {.seed = 2, .stddev = 2})},
          // scale() makes logits of the graph's own, so that their memory is reused.
          .op =
              [=](const auto& in) {
                return cross_entropy(scale(in[0], 1), labels, smoothing,
                                     {.num_columns = vocabulary});
              },
          .expected =
              [=](const auto& in) {
                return cross_entropy_expected(in[0], labels, double(smoothing), v);
              },
          .terms = 8};
}

TEST(CrossEntropyTest, FollowsItsDefinition) {
  for (const Shape& shape : {Shape{2, 3, 7}, Shape{3, 1, 2}, Shape{1, 1, 1}, Shape{2, 2, 33}}) {
    check(make_case(shape, 0.0f));
    check(make_case(shape, 0.1f));
  }
}

TEST(CrossEntropyTest, FollowsItsDefinitionOnRowsOfManyTiles) {
  OpCase c = make_case({2, 3, 1283}, 0.1f);
  c.check_differences = false;
  check(c);
}

TEST(CrossEntropyTest, EmptyBatch) {
  OpCase c = make_case({3, 0, 5}, 0.0f);
  c.check_differences = false;
  check(c);
}

TEST(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const Tensor logits = tensor_of(std::vector<float>{3e38f, 0, -3e38f}, {1, 1, 3});
  const Tensor labels = tensor_of(std::vector<int64_t>{0}, {1, 1});
  EXPECT_EQ(cross_entropy(Variable(logits), labels).data().item(), 0);
}

TEST(CrossEntropyTest, GradientReusesTheLogitsMemoryWhenNobodyElseHoldsIt) {
  const Tensor labels = tensor_of(std::vector<int64_t>{1}, {1, 1});
  for (const bool held : {false, true}) {
    const Variable x = Variable::leaf(random_normal({1, 1, 4}, {.seed = 1}));
    const void* memory = nullptr;
    const void* gradient_memory = nullptr;
    Tensor holder;
    Variable losses;
    {
      Tensor y = copied(x.data());
      memory = y.view().data;
      if (held) holder = y;
      const Variable logits =
          record("probe", std::move(y), {x}, [&](const Tensor& dy, const Wants&) -> Grads {
            gradient_memory = dy.view().data;
            return {dy};
          });
      losses = cross_entropy(logits, labels);
    }
    backward(losses, full({1, 1}, 1, DType::kFloat32, Stream{}));
    EXPECT_EQ(gradient_memory == memory, !held);
    if (held) expect_identical(holder, x.data());
  }
}

TEST(CrossEntropyTest, ShardsOfTheVocabularyCombineToTheWhole) {
  const Tensor labels = random_ids({2, 3}, 8, 5);
  const Variable whole = Variable::leaf(random_normal({3, 2, 8}, {.seed = 1, .stddev = 3}));
  const Variable want = cross_entropy(whole, labels, 0.1f);
  backward(want, full({3, 2}, 1, DType::kFloat32, Stream{}));

  // Two ranks with 3 and 5 columns, as a vocabulary-parallel loss runs them.
  const auto columns = [](const Tensor& x, int64_t first, int64_t count) {
    Tensor part({3, 2, count}, DType::kFloat32, Stream{});
    for (int64_t i = 0; i < part.numel(); ++i) {
      part.span<float>()[static_cast<size_t>(i)] =
          x.span<float>()[static_cast<size_t>(i / count * 8 + first + i % count)];
    }
    return part;
  };
  Tensor statistics({2, 3, 2, kernels::kNumCrossEntropyStatistics}, DType::kFloat32, Stream{});
  const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 3}, {3, 5}};
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto [first, count] = parts[rank];
    const Tensor logits = columns(whole.data(), first, count);
    Tensor own = statistics.slice(static_cast<int64_t>(rank), 1)
                     .reshape({3, 2, kernels::kNumCrossEntropyStatistics});
    kernels::cross_entropy_statistics(own.view(), logits.view(), labels.view(), first, 8, Stream{});
  }
  Tensor losses({3, 2}, DType::kFloat32, Stream{});
  Tensor lse({3, 2}, DType::kFloat32, Stream{});
  kernels::cross_entropy_losses(losses.view(), lse.view(), std::as_const(statistics).view(),
                                labels.view(), 0.1f, 8, Stream{});
  expect_close(losses, want.data(), tolerance_of(DType::kFloat32).for_terms(8));
  const Tensor ones = full({3, 2}, 1, DType::kFloat32, Stream{});
  for (const auto& [first, count] : parts) {
    Tensor logits = columns(whole.data(), first, count);
    kernels::cross_entropy_backward(logits.view(), ones.view(), std::as_const(logits).view(),
                                    std::as_const(lse).view(), labels.view(), first, 0.1f, 8,
                                    Stream{});
    expect_close(logits, columns(whole.grad(), first, count),
                 tolerance_of(DType::kFloat32).for_terms(8));
  }
}

// Logits near -35 beside padding near 0, which would take all of the probability.
TEST(CrossEntropyTest, PaddingColumnsTakeNoPart) {
  for (const auto& [columns, vocabulary] :
       {std::pair<int64_t, int64_t>{9, 5}, {1, 1}, {1043, 1030}}) {
    for (const float smoothing : {0.0f, 0.1f}) {
      OpCase c = make_case({2, 3, columns}, smoothing, vocabulary);
      c.check_differences = columns < 100;
      for (int64_t i = 0; i < c.inputs[0].numel(); ++i) {
        if (i % columns < vocabulary) c.inputs[0].span<float>()[static_cast<size_t>(i)] -= 35;
      }
      check(c);
    }
  }
}

TEST(CrossEntropyTest, RefusesALabelOutsideTheVocabulary) {
  const Variable logits(random_normal({2, 1, 4}, {.seed = 1}));
  const Tensor labels = tensor_of(std::vector<int64_t>{3, 4}, {1, 2});
  const std::string message = message_of<ShapeError>([&] { cross_entropy(logits, labels); });
  EXPECT_NE(message.find("label 4 at sample 0, position 1 is not below the vocabulary size 4"),
            std::string::npos)
      << message;
}

TEST(MaskedMeanTest, FollowsItsDefinition) {
  const Tensor mask = tensor_of(std::vector<float>{1, 0, 0.5f, 1, 1, 0}, {2, 3});
  const auto of = [&](const std::vector<Tensor>& in) {
    double sum = 0;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 2; ++j) sum += element(in[0], i * 2 + j) * element(mask, j * 3 + i);
    }
    return full({}, static_cast<float>(sum / 3.5), DType::kFloat32, Stream{});
  };
  check({.name = "masked_mean",
         .inputs = {random_normal({3, 2}, {.seed = 1})},
         .op = [&](const auto& in) { return masked_mean(in[0], mask); },
         .expected = of,
         .dtypes = {}});
}

TEST(MaskedMeanTest, DividesByWhatIsGiven) {
  const Tensor mask = tensor_of(std::vector<float>{1, 0, 1, 1}, {1, 4});
  const Tensor divisor = tensor_of(std::vector<float>{8}, {});
  check({.name = "masked_mean",
         .inputs = {random_normal({4, 1}, {.seed = 1})},
         .op = [&](const auto& in) { return masked_mean(in[0], mask, divisor); },
         .expected =
             [](const std::vector<Tensor>& in) {
               const double sum = element(in[0], 0) + element(in[0], 2) + element(in[0], 3);
               return full({}, static_cast<float>(sum / 8), DType::kFloat32, Stream{});
             },
         .dtypes = {}});
}

TEST(MaskedMeanTest, AFullyMaskedMicrobatchIsZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Variable losses = Variable::leaf(full({2, 1}, infinity, DType::kFloat32, Stream{}));
  const Variable mean = masked_mean(losses, zeros({1, 2}, DType::kFloat32, Stream{}));
  EXPECT_EQ(mean.data().item(), 0);
  backward(mean);
  expect_identical(losses.grad(), zeros({2, 1}, DType::kFloat32, Stream{}));
}

TEST(LogProbabilitiesTest, AreLogSoftmaxAtTheIds) {
  const Tensor logits = random_normal({3, 2, 5}, {.seed = 1});
  const Tensor ids = random_ids({2, 3}, 5, 2);
  Tensor want = cross_entropy_expected(logits, ids, 0, logits.size(-1));
  scale_inplace(want, -1);
  expect_close(log_probabilities(logits, ids), want, tolerance_of(DType::kFloat32).for_terms(8));
}

}  // namespace
}  // namespace megatron
