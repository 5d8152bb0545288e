#include "megatron/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/device/philox.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

const DropoutKey kKey{
    .key = 0x123456789ABCDEF0u, .first_sample = 5'000'000'001, .probability = 0.3f};

// The mask as device/random.h documents it, element by element.
bool is_kept(const DropoutKey& key, int64_t i, int64_t j, int64_t k) {
  const auto sample = static_cast<uint64_t>(key.first_sample + j);
  const auto words =
      philox<7>({static_cast<uint32_t>(k / 8), static_cast<uint32_t>(key.first_row + i),
                 static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                key.key);
  const uint32_t word = words[static_cast<size_t>(k % 8 / 2)];
  return (k % 2 == 0 ? word & 0xFFFFu : word >> 16) < key.keep_threshold();
}

Tensor dropout_expected(const std::vector<Tensor>& in, const DropoutKey& key, bool has_bias) {
  const Tensor& residual = in.back();
  Tensor y = empty_like(residual);
  const int64_t batch = y.size(1);
  const int64_t cols = y.size(2);
  for (int64_t e = 0; e < y.numel(); ++e) {
    const int64_t k = e % cols;
    const double branch = element(in[0], e) + (has_bias ? element(in[1], k) : 0);
    const bool kept = !key.is_active() || is_kept(key, e / cols / batch, e / cols % batch, k);
    const double scale = key.is_active() ? 1 / (1 - double(key.probability)) : 1;
    y.span<float>()[static_cast<size_t>(e)] =
        static_cast<float>(element(residual, e) + (kept ? branch * scale : 0));
  }
  return y;
}

OpCase dropout_make_case(const Shape& shape, const DropoutKey& key, bool has_bias) {
  OpCase c{.name = "bias_dropout_add " + shape.str(),
           .inputs = {random_normal(shape, {.seed = 1})},
           .op =
               [=](const auto& in) {
                 return bias_dropout_add(in[0], has_bias ? in[1] : Variable(), in.back(), key);
               },
           .expected = [=](const auto& in) { return dropout_expected(in, key, has_bias); },
           .terms = 8 * shape[0] * shape[1]};
  if (has_bias) c.inputs.push_back(random_normal({shape[2]}, {.seed = 2}));
  c.inputs.push_back(random_normal(shape, {.seed = 3}));
  return c;
}

TEST(BiasDropoutAddTest, NeedsNoResidual) {
  const Shape shape = {3, 2, 5};
  check({.name = "bias_dropout_add without a residual",
         .inputs = {random_normal(shape, {.seed = 1}), random_normal({5}, {.seed = 2})},
         .op = [](const auto& in) { return bias_dropout_add(in[0], in[1], Variable(), kKey); },
         .expected =
             [&](const auto& in) {
               return dropout_expected({in[0], in[1], zeros(shape, DType::kFloat32, Stream{})},
                                       kKey, true);
             },
         .terms = 8 * 6});
}

TEST(BiasDropoutAddTest, FollowsItsDefinition) {
  for (const Shape& shape : {Shape{3, 2, 5}, Shape{1, 1, 1}, Shape{2, 3, 8}}) {
    for (const bool has_bias : {false, true}) {
      check(dropout_make_case(shape, kKey, has_bias));
      check(dropout_make_case(shape, {}, has_bias));
    }
  }
}

TEST(BiasDropoutAddTest, FollowsItsDefinitionOnRowsOfManyTiles) {
  OpCase c = dropout_make_case({3, 2, 1283}, kKey, true);
  c.terms = 128;  // sums of gradients that were rounded to 16 bits, some of them near zero
  c.check_differences = false;
  check(c);
}

TEST(BiasDropoutAddTest, EmptyBatch) {
  OpCase c = dropout_make_case({4, 0, 3}, kKey, true);
  c.check_differences = false;
  check(c);
}

TEST(BiasDropoutAddTest, KeepsAnFp32Residual) {
  OpCase c = dropout_make_case({3, 2, 5}, kKey, true);
  c.fp32_inputs = {2};
  check(c);
  const Variable x(random_normal({1, 1, 4}, {.seed = 1, .dtype = DType::kBFloat16}));
  const Variable residual(random_normal({1, 1, 4}, {.seed = 1}));
  EXPECT_EQ(bias_dropout_add(x, {}, residual, kKey).dtype(), DType::kFloat32);
}

TEST(DropoutTest, FollowsItsDefinition) {
  check({.name = "dropout",
         .inputs = {random_normal({3, 2, 7}, {.seed = 1})},
         .op = [](const auto& in) { return dropout(in[0], kKey); },
         .expected =
             [](const auto& in) {
               return dropout_expected({in[0], zeros(in[0].shape(), DType::kFloat32, Stream{})},
                                       kKey, false);
             }});
}

TEST(DropoutTest, KeepsTheRightShare) {
  const Tensor x = full({64, 4, 256}, 1, DType::kFloat32, Stream{});
  const Tensor y = dropout(Variable(x), kKey).data();
  double sum = 0;
  for (int64_t i = 0; i < y.numel(); ++i) sum += element(y, i);
  // The standard deviation of the mean is 0.65 / 256.
  EXPECT_NEAR(sum / double(y.numel()), 1.0, 0.01);
}

// Elements of one word, of one call, of adjacent calls, rows and samples, and of other sites.
TEST(DropoutTest, NeighboursAreIndependent) {
  const Shape shape = {66, 5, 272};  // [s, b, h]
  const Tensor x = full(shape, 1, DType::kFloat32, Stream{});
  const Tensor y = dropout(Variable(x), kKey).data();
  DropoutKey site = kKey;
  ++site.key;
  const Tensor z = dropout(Variable(x), site).data();
  const auto is_one = [&](const Tensor& of, int64_t i, int64_t j, int64_t k) {
    return of.span<float>()[static_cast<size_t>((i * 5 + j) * 272 + k)] != 0.0f;
  };
  // How often both elements of a pair are kept.
  const auto share = [&](const Tensor& other, int64_t rows, int64_t samples, int64_t columns) {
    int64_t both = 0;
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t k = 0; k < 256; ++k) {
          both += is_one(y, i, j, k) && is_one(other, i + rows, j + samples, k + columns);
        }
      }
    }
    return static_cast<double>(both) / (64 * 4 * 256);
  };
  // 0.7^2, with a standard deviation of 0.5 / 256. Pairs that are always alike would have 0.7.
  for (int64_t columns = 1; columns <= 16; ++columns) {
    EXPECT_NEAR(share(y, 0, 0, columns), 0.49, 0.008) << columns;
  }
  EXPECT_NEAR(share(y, 1, 0, 0), 0.49, 0.008);
  EXPECT_NEAR(share(y, 0, 1, 0), 0.49, 0.008);
  EXPECT_NEAR(share(y, 2, 1, 8), 0.49, 0.008);
  EXPECT_NEAR(share(z, 0, 0, 0), 0.49, 0.008);
}

TEST(DropoutTest, MaskDoesNotDependOnTheMicrobatchOrTheShard) {
  const Tensor x = random_normal({4, 3, 6}, {.seed = 1});
  const Tensor whole = dropout(Variable(x), kKey).data();
  // Positions 2 and 3 alone, as a sequence-parallel rank has them.
  DropoutKey shard = kKey;
  shard.first_row = 2;
  expect_identical(dropout(Variable(x.slice(2, 2)), shard).data(), whole.slice(2, 2));
  // Sample 1 alone.
  Tensor one({4, 1, 6}, DType::kFloat32, Stream{});
  Tensor want = empty_like(one);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < 6; ++k) {
      one.span<float>()[i * 6 + k] = x.span<float>()[(i * 3 + 1) * 6 + k];
      want.span<float>()[i * 6 + k] = whole.span<float>()[(i * 3 + 1) * 6 + k];
    }
  }
  DropoutKey second = kKey;
  second.first_sample += 1;
  expect_identical(dropout(Variable(one), second).data(), want);
}

TEST(DropoutTest, MaskDoesNotDependOnTheColumnsOfARank) {
  const Tensor x = full({4, 3, 24}, 1, DType::kFloat32, Stream{});
  const Tensor dy = random_normal({4, 3, 24}, {.seed = 2});
  const auto columns = [](const Tensor& of, int64_t first, int64_t count) {
    Tensor part({4, 3, count}, DType::kFloat32, Stream{});
    for (int64_t row = 0; row < 12; ++row) {
      std::copy_n(of.span<float>().begin() + row * 24 + first, count,
                  part.span<float>().begin() + row * count);
    }
    return part;
  };
  const Variable whole = Variable::leaf(x);
  const Variable y = dropout(whole, kKey);
  const Tensor want = copied(y.data());
  backward(y, dy);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 8}, {8, 16}}) {
    const Variable part = Variable::leaf(columns(x, first, count));
    const Variable of_part = dropout(part, kKey, first);
    expect_identical(of_part.data(), columns(want, first, count));
    backward(of_part, columns(dy, first, count));
    expect_identical(part.grad(), columns(whole.grad(), first, count));
  }
}

TEST(DropoutTest, FindsItsSamplesInMemory) {
  const Variable x(random_normal({4, 3, 6}, {.seed = 1}));
  DropoutKey key = kKey;
  const int64_t somewhere = kKey.first_sample - 7;
  key.first_sample = 7;
  key.more_samples = &somewhere;
  expect_identical(dropout(x, key).data(), dropout(x, kKey).data());
}

TEST(DropoutTest, IsTheIdentityWhenInactive) {
  const Variable x(random_normal({2, 2, 2}, {.seed = 1}));
  EXPECT_EQ(dropout(x, {}).data().view().data, x.data().view().data);
}

}  // namespace
}  // namespace megatron
