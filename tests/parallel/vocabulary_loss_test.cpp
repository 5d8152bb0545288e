#include "megatron/parallel/tensor/vocabulary_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "tests/parallel/shards.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kPositions = 12;
constexpr int64_t kSamples = 2;
constexpr int64_t kVocabularyLossHidden = 8;
constexpr int64_t kColumns = 32;
constexpr int64_t kLabels = 29;  // the other columns are padding

// A product whose parameters have main gradients, as in training.
VocabularyProduct product_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  VocabularyProduct product{Variable::leaf(x), Variable::leaf(weight), Variable::leaf(bias)};
  for (Variable* parameter : {&product.weight, &product.bias}) {
    parameter->set_main_grad(full(parameter->shape(), 0.5f, DType::kFloat32, Stream{}));
  }
  return product;
}

struct Whole {
  Tensor x, weight, bias;

  explicit Whole(DType dtype = DType::kFloat32)
      : x(random_normal({kPositions, kSamples, kVocabularyLossHidden},
                        {.seed = 1, .dtype = dtype})),
        weight(random_normal({kColumns, kVocabularyLossHidden}, {.seed = 2, .dtype = dtype})),
        bias(random_normal({kColumns}, {.seed = 3, .dtype = dtype})) {}
  float multiplier = 1;
  float cap = 0;

  VocabularyProduct product() const { return changed(product_of(copied(x), weight, bias)); }
  VocabularyProduct changed(VocabularyProduct product) const {
    product.multiplier = multiplier;
    product.cap = cap;
    return product;
  }
};

LossTargets targets(float smoothing = 0, bool has_divisor = false) {
  Tensor labels = random_ids({kSamples, kPositions}, kLabels, 4);
  labels.span<int64_t>()[5] = -1;
  Tensor mask = full({kSamples, kPositions}, 1, DType::kFloat32, Stream{});
  mask.span<float>()[3] = 0;
  return {.labels = labels,
          .loss_mask = mask,
          .divisor = has_divisor ? full({}, 7, DType::kFloat32, Stream{}) : Tensor(),
          .num_labels = kLabels,
          .label_smoothing = smoothing};
}

Tensor seed_of(float value) { return full({}, value, DType::kFloat32, Stream{}); }

// Bytes that leave so many positions to a piece of a rank's columns.
int64_t bytes_of(int64_t positions, int64_t columns, DType dtype) {
  return positions * kSamples * columns * size_of(dtype);
}

struct Variant {
  int64_t positions;  // of a piece
  DType dtype = DType::kFloat32;
  float smoothing = 0;
  bool has_divisor = false;
};

constexpr Variant kVariants[] = {{1},
                                 {4},
                                 {5, DType::kFloat32, 0.1f, true},  // the last piece is shorter
                                 {4, DType::kBFloat16},
                                 {12, DType::kFloat16, 0.1f}};

// A loss without seed keeps all logits.
TEST(VocabularyLossTest, EqualsTheLossOfAllLogits) {
  for (const Variant& variant : kVariants) {
    const Whole whole(variant.dtype);
    const Tensor seed = seed_of(4);
    const VocabularyProduct want = whole.product();
    const Variable want_loss =
        vocabulary_loss(want, targets(variant.smoothing, variant.has_divisor), {});
    backward(want_loss, seed);

    const VocabularyProduct got = whole.product();
    const Variable loss =
        vocabulary_loss(got, targets(variant.smoothing, variant.has_divisor), {}, seed,
                        bytes_of(variant.positions, kColumns, variant.dtype));
    expect_identical(loss.data(), want_loss.data(), "loss");
    backward(loss, seed);
    expect_close(got.x.grad(), want.x.grad(), "x");
    expect_close(got.weight.grad(), want.weight.grad(), Tolerance{1e-5, 1e-5}, "weight");
    expect_close(got.bias.grad(), want.bias.grad(), Tolerance{1e-5, 1e-5}, "bias");
  }
}

TEST(VocabularyLossTest, OnePieceHasTheBitsOfAllLogits) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const Whole whole(dtype);
    const Tensor seed = seed_of(2);
    const VocabularyProduct want = whole.product();
    backward(vocabulary_loss(want, targets(), {}), seed);
    const VocabularyProduct got = whole.product();
    backward(vocabulary_loss(got, targets(), {}, seed), seed);
    expect_identical(got.x.grad(), want.x.grad(), "x");
    expect_identical(got.weight.grad(), want.weight.grad(), "weight");
    expect_identical(got.bias.grad(), want.bias.grad(), "bias");
  }
}

void expect_gradients_are_differences(const Whole& whole) {
  const Tensor seed = seed_of(1);
  const VocabularyProduct product = whole.product();
  backward(
      vocabulary_loss(product, targets(0.1f), {}, seed, bytes_of(5, kColumns, DType::kFloat32)),
      seed);
  constexpr float kStep = 0x1p-6f;
  const auto expect_differences = [&](Tensor Whole::*part, const Tensor& gradient, float start) {
    for (int64_t i = 0; i < gradient.numel(); i += 7) {
      const auto loss_at = [&](float step) {
        Whole moved = whole;
        moved.*part = copied(whole.*part);
        (moved.*part).span<float>()[static_cast<size_t>(i)] += step;
        const NoGrad no_grad;
        return vocabulary_loss(moved.product(), targets(0.1f), {}).data().item();
      };
      const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient.span<float>()[static_cast<size_t>(i)] - start, difference, 2e-4) << i;
    }
  };
  expect_differences(&Whole::x, product.x.grad(), 0);
  expect_differences(&Whole::weight, product.weight.grad(), 0.5f);
  expect_differences(&Whole::bias, product.bias.grad(), 0.5f);
}

TEST(VocabularyLossTest, GradientsAreDifferencesOfTheLoss) {
  expect_gradients_are_differences(Whole());
}

TEST(VocabularyLossTest, GradientsOfMultipliedAndCappedLogits) {
  Whole whole;
  whole.multiplier = 0.25f;
  expect_gradients_are_differences(whole);
  whole.cap = 1.5f;
  expect_gradients_are_differences(whole);
}

TEST(VocabularyLossTest, LogitsAreMultipliedThenCapped) {
  Whole whole;
  const Tensor plain = logits_of(whole.product(), {}).data();
  whole.multiplier = 0.25f;
  whole.cap = 1.5f;
  const Tensor capped = logits_of(whole.product(), {}).data();
  Tensor want = copied(plain);
  for (float& logit : want.span<float>()) logit = 1.5f * std::tanh(logit * 0.25f / 1.5f);
  expect_close(capped, want, Tolerance{1e-6, 1e-6}, "logits");

  // Pieces, one loss of all logits, and no gradients.
  const Tensor seed = seed_of(1);
  const double all = vocabulary_loss(whole.product(), targets(), {}).data().item();
  const int64_t bytes = bytes_of(5, kColumns, DType::kFloat32);
  EXPECT_NEAR(vocabulary_loss(whole.product(), targets(), {}, seed, bytes).data().item(), all,
              1e-6);
  const NoGrad no_grad;
  EXPECT_NEAR(vocabulary_loss(whole.product(), targets(), {}, {}, bytes).data().item(), all, 1e-6);
}

// Parameters: ranks, and whether the sequence is divided among them.
class VocabularyLossRanksTest : public testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(VocabularyLossRanksTest, RanksComputeWhatOneComputes) {
  const int ranks = GetParam().first;
  const bool sequence_parallel = GetParam().second;
  Whole whole;
  whole.multiplier = 0.5f;
  whole.cap = 2;
  const Tensor seed = seed_of(3);
  const VocabularyProduct want = whole.product();
  const Variable want_loss = vocabulary_loss(want, targets(0.1f), {}, seed);
  backward(want_loss, seed);

  comm::run_ranks(ranks, [&](const comm::Group& group) {
    const TensorParallel tp{.group = group, .sequence_parallel = sequence_parallel};
    const auto part_of = [&](const Tensor& x) { return shard_of(x, tp.sharding(0)); };
    const VocabularyProduct mine = whole.changed(
        product_of(own_slice(whole.x, tp), part_of(whole.weight), part_of(whole.bias)));
    const Variable loss = vocabulary_loss(mine, targets(0.1f), tp, seed,
                                          bytes_of(5, kColumns / tp.size(), DType::kFloat32));
    expect_close(loss.data(), want_loss.data(), Tolerance{1e-6, 1e-6}, "loss");
    backward(loss, seed);
    expect_close(mine.x.grad(), own_slice(want.x.grad(), tp), Tolerance{1e-5, 1e-6}, "x");
    expect_close(mine.weight.grad(), part_of(want.weight.grad()), Tolerance{1e-5, 1e-6}, "weight");
    expect_close(mine.bias.grad(), part_of(want.bias.grad()), Tolerance{1e-5, 1e-6}, "bias");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, VocabularyLossRanksTest,
                         testing::Values(std::pair(2, false), std::pair(2, true),
                                         std::pair(4, false), std::pair(4, true)),
                         [](const auto& variant) {
                           return "Of" + std::to_string(variant.param.first) +
                                  (variant.param.second ? "WithSequenceParallel" : "");
                         });

// Adapters train while the vocabulary does not, or the other way round.
TEST(VocabularyLossTest, ConstantsHaveNoGradient) {
  const Whole whole;
  const Tensor seed = seed_of(1);
  const VocabularyProduct want = whole.product();
  backward(vocabulary_loss(want, targets(), {}, seed), seed);

  const VocabularyProduct fixed{Variable::leaf(whole.x), Variable(whole.weight)};
  VocabularyProduct without_bias = whole.product();
  without_bias.bias = {};
  backward(vocabulary_loss(without_bias, targets(), {}, seed), seed);
  backward(vocabulary_loss(fixed, targets(), {}, seed), seed);
  expect_identical(fixed.x.grad(), without_bias.x.grad());

  VocabularyProduct alone = whole.product();
  alone.x = Variable(whole.x);
  backward(vocabulary_loss(alone, targets(), {}, seed), seed);
  expect_identical(alone.weight.grad(), want.weight.grad());
}

// Without main gradients the engine delivers those of weights.
TEST(VocabularyLossTest, ReturnsGradientsOfWeights) {
  const Whole whole;
  const Tensor seed = seed_of(1);
  const VocabularyProduct want{Variable::leaf(whole.x), Variable::leaf(whole.weight),
                               Variable::leaf(whole.bias)};
  backward(vocabulary_loss(want, targets(), {}), seed);
  const VocabularyProduct got{Variable::leaf(whole.x), Variable::leaf(whole.weight),
                              Variable::leaf(whole.bias)};
  backward(vocabulary_loss(got, targets(), {}, seed, bytes_of(5, kColumns, DType::kFloat32)), seed);
  expect_close(got.weight.grad(), want.weight.grad(), Tolerance{1e-5, 1e-6}, "weight");
  expect_close(got.bias.grad(), want.bias.grad(), Tolerance{1e-5, 1e-6}, "bias");
}

TEST(VocabularyLossTest, OutsideOfGradModeThereIsTheSameLoss) {
  const Whole whole;
  const VocabularyProduct product = whole.product();
  const Variable want = vocabulary_loss(product, targets(), {});
  const NoGrad no_grad;
  const Variable loss =
      vocabulary_loss(product, targets(), {}, {}, bytes_of(5, kColumns, DType::kFloat32));
  EXPECT_FALSE(loss.requires_grad());
  expect_identical(loss.data(), want.data());
  EXPECT_EQ(product.weight.grad().span<float>()[0], 0.5f);
}

TEST(VocabularyLossTest, RefusesAnotherGradientThanItsSeed) {
  const Whole whole;
  const Tensor seed = seed_of(1);
  const Variable loss = vocabulary_loss(whole.product(), targets(), {}, seed);
  EXPECT_THROW(backward(loss, seed_of(1)), Error);
}

TEST(VocabularyLossTest, RefusesLabelsThatArePadding) {
  LossTargets wrong = targets();
  wrong.labels.span<int64_t>()[0] = kLabels;
  EXPECT_THROW(vocabulary_loss(Whole().product(), wrong, {}, seed_of(1)), ShapeError);
}

// Only a piece of the logits is there at a time.
TEST(VocabularyLossTest, TakesTheMemoryOfAPiece) {
  constexpr int64_t kWide = 8192;
  constexpr int64_t kLong = 256;
  const Stream stream{Device{DeviceType::kCpu, 1}};  // a pool of its own
  CachingAllocator& allocator = allocator_of(stream.device);
  const VocabularyProduct product{
      Variable::leaf(random_normal({kLong, 1, kVocabularyLossHidden}, {.seed = 1}).to(stream)),
      Variable::leaf(random_normal({kWide, kVocabularyLossHidden}, {.seed = 2}).to(stream))};
  const Tensor ids = random_ids({1, kLong}, kWide, 3).to(stream);
  const Tensor mask = full({1, kLong}, 1, DType::kFloat32, stream);
  const Tensor seed = full({}, 1, DType::kFloat32, stream);
  constexpr int64_t kPiece = 32 * kWide * 4;
  allocator.empty_cache();
  allocator.reset_peaks();
  const auto activations = static_cast<size_t>(MemoryCategory::kActivations);
  const int64_t before = allocator.stats().by_category[activations];
  backward(vocabulary_loss(product, {ids, mask}, {}, seed, kPiece), seed);
  const int64_t took = allocator.stats().peak_by_category[activations] - before;
  constexpr int64_t kGradients = (kWide + kLong) * kVocabularyLossHidden * 4;
  EXPECT_GE(took, kPiece + kGradients);
  EXPECT_LE(took, kPiece + kGradients + kPiece / 16);
}

TEST(PositionsOfPieceTest, PiecesFitAndAreAlike) {
  for (const int64_t b : {1, 2, 3, 16, 32, 96}) {
    for (const int64_t s : {1, 5, 512, 1024, 2048, 8192}) {
      for (const int64_t columns : {64, 25152, 50304, 128256}) {
        const int64_t n = positions_of_piece(s, b, columns, DType::kBFloat16);
        EXPECT_GE(n, 1);
        EXPECT_LE(n, s);
        EXPECT_LE(n * b * columns * 2, kMaxLogitsBytes);
        const int64_t pieces = (s + n - 1) / n;
        EXPECT_TRUE(n == s || n * b % 128 == 0 || n * pieces - s < pieces)
            << s << " " << b << " " << columns;
      }
    }
  }
  // 345M, 1558M and 1.3B of the performance page.
  EXPECT_EQ(positions_of_piece(1024, 32, 50304, DType::kBFloat16), 148);
  EXPECT_EQ(positions_of_piece(1024, 16, 50304, DType::kBFloat16), 256);
  EXPECT_EQ(positions_of_piece(2048, 8, 50304, DType::kBFloat16), 512);
}

}  // namespace
}  // namespace megatron
