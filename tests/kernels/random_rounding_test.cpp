#include "megatron/kernels/random_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "megatron/kernels/optimizer.h"
#include "tests/support/tensors.h"

namespace megatron::kernels {
namespace {

uint32_t word_of(float x) { return std::bit_cast<uint32_t>(x); }

// 0 <= beyond < 65536 units of the last place of fp32 lie between w and the bf16 number below it.
TEST(RandomRoundingTest, TheMeanIsTheNumber) {
  constexpr int kDraws = 40'000;
  for (const float start : {1.0f, -0.0078125f, 3.0e-39f, 1.7e38f}) {
    for (const uint32_t beyond : {0u, 1u, 655u, 0x4000u, 0x8000u, 0xffffu}) {
      const float w = std::bit_cast<float>((word_of(start) & 0xffff0000u) + beyond);
      const float below = std::bit_cast<float>(word_of(w) & 0xffff0000u);
      const float above = std::bit_cast<float>((word_of(w) & 0xffff0000u) + 0x10000u);
      int ups = 0;
      for (int i = 0; i < kDraws; ++i) {
        RoundingBits bits(99, static_cast<uint32_t>(i % 200));
        const float y = rounded_at_random(word_of(w), bits.of(i / 200));
        ASSERT_TRUE(y == below || y == above) << y;
        ups += y == above ? 1 : 0;
      }
      const double share = beyond / 65536.0;
      EXPECT_NEAR(ups, kDraws * share, 4 * std::sqrt(kDraws * share * (1 - share)) + 1e-9)
          << w << " " << beyond;
    }
  }
}

TEST(RandomRoundingTest, NumbersOfBf16AndInfinitiesStayAndNanIsNan) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    const float x = std::bit_cast<float>(high << 16);
    const BFloat16 y = rounded_at_random(high << 16, 0xffffu);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(y)));
    } else {
      ASSERT_EQ(y.bits, high);
    }
  }
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    ASSERT_TRUE(std::isnan(static_cast<float>(rounded_at_random(nan, 0xffffu))));
  }
}

constexpr int64_t kRoundedSize = 3'001;

Tensor rounding_decision() {
  Tensor state({kStepStateBytes}, DType::kUInt8, Stream{});
  const StepState numbers{.grad_scale = 1.0};
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

// Elements [begin, end) of a parameter of kRoundedSize elements, which a rank updates alone.
struct RoundedPart {
  Tensor main, model, exp_avg, exp_avg_sq, grad;
  Tensor ends, groups, places;

  RoundedPart(int64_t begin, int64_t end, bool has_model)
      : main(part(random_normal({kRoundedSize}, {.seed = 1, .dtype = DType::kBFloat16}), begin,
                  end)),
        exp_avg(part(random_normal({kRoundedSize}, {.seed = 2}), begin, end)),
        exp_avg_sq(part(full({kRoundedSize}, 0.5f, DType::kFloat32, Stream{}), begin, end)),
        grad(part(random_normal({kRoundedSize}, {.seed = 3}), begin, end)),
        ends(tensor_of<int64_t>({end - begin}, {1})),
        groups(tensor_of<int32_t>({0}, {1})),
        places(tensor_of<int64_t>({77, -begin, 0, kRoundedSize, kRoundedSize}, {1, 5})) {
    if (has_model) model = zeros({end - begin}, DType::kBFloat16, Stream{});
  }
  static Tensor part(const Tensor& whole, int64_t begin, int64_t end) {
    return copied(whole.slice(begin, end - begin));
  }
  GroupRanges ranges(uint32_t step) const {
    return {ends.view(), groups.view(), {}, {ends.view(), places.view(), step}};
  }
  void adam(uint32_t step) {
    kernels::adam(model.defined() ? model.view() : TensorView{}, main.view(), exp_avg.view(),
                  exp_avg_sq.view(), grad.view(), ranges(step),
                  std::vector<AdamNumbers>{{.lr = 1e-3, .weight_decay = 0.1}},
                  rounding_decision().view(), Stream{});
  }
};

TEST(RandomRoundingTest, UpdatesAreThoseOfFp32RoundedToANeighbour) {
  RoundedPart narrow(0, kRoundedSize, true);
  Tensor wide = cast(narrow.main, DType::kFloat32);
  Tensor m = copied(narrow.exp_avg);
  Tensor v = copied(narrow.exp_avg_sq);
  adam({}, wide.view(), m.view(), v.view(), narrow.grad.view(), narrow.ranges(1),
       std::vector<AdamNumbers>{{.lr = 1e-3, .weight_decay = 0.1}}, rounding_decision().view(),
       Stream{});
  narrow.adam(1);
  int64_t ups = 0;
  for (int64_t i = 0; i < kRoundedSize; ++i) {
    const auto w = word_of(wide.span<float>()[static_cast<size_t>(i)]);
    const uint32_t got = narrow.main.span<BFloat16>()[static_cast<size_t>(i)].bits;
    ASSERT_TRUE(got == w >> 16 || got == (w >> 16) + 1) << i;
    ups += got != w >> 16 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(ups), kRoundedSize / 2.0, 150);
  expect_identical(narrow.model, narrow.main, "the model's copy");
  expect_identical(narrow.exp_avg, m, "exp_avg");

  RoundedPart again(0, kRoundedSize, false);
  again.adam(1);
  expect_identical(again.main, narrow.main, "the same bits again, without a copy");
  RoundedPart later(0, kRoundedSize, false);
  later.adam(2);
  EXPECT_NE(0, std::memcmp(later.main.view().data, again.main.view().data,
                           static_cast<size_t>(again.main.bytes())));
}

// Shares of any size: each number is rounded as it is in the whole parameter.
TEST(RandomRoundingTest, SharesRoundAsTheWhole) {
  RoundedPart whole(0, kRoundedSize, false);
  for (uint32_t step = 1; step <= 3; ++step) whole.adam(step);
  for (const int64_t cut : {1, 64, 1'023, 2'990}) {
    RoundedPart first(0, cut, false);
    RoundedPart second(cut, kRoundedSize, false);
    for (uint32_t step = 1; step <= 3; ++step) {
      first.adam(step);
      second.adam(step);
    }
    expect_identical(first.main, whole.main.slice(0, cut));
    expect_identical(second.main, whole.main.slice(cut, kRoundedSize - cut));
  }
}

// A part of columns 3 and 4 of a matrix of five columns.
TEST(RandomRoundingTest, ColumnsHaveTheBitsOfTheirElements) {
  const RoundingPlace place = {.key = 5, .first = 10, .origin = 3, .width = 2, .stride = 5};
  EXPECT_EQ(place.element(10), 3);
  EXPECT_EQ(place.element(11), 4);
  EXPECT_EQ(place.element(12), 8);
  EXPECT_EQ(place.element(15), 14);
  RoundingBits in_order(5, 1);
  std::vector<uint32_t> words;
  for (int64_t i = 0; i < 20; ++i) words.push_back(in_order.of(i));
  RoundingBits by_place(5, 1);
  for (const int64_t at : {15, 12, 10, 11}) {
    const int64_t element = place.element(at);
    EXPECT_EQ(by_place.of(element), words[static_cast<size_t>(element)]);
  }
}

// Steps of a tenth of the last place of bf16, all in one direction: at random the numbers follow
// their fp32 twins; to nearest they would never change.
TEST(RandomRoundingTest, SmallStepsAddUp) {
  constexpr int64_t kNumbers = 4'096;
  constexpr int kSteps = 300;
  Tensor main = cast(full({kNumbers}, 1.0f, DType::kFloat32, Stream{}), DType::kBFloat16);
  Tensor momentum = zeros({kNumbers}, DType::kFloat32, Stream{});
  const Tensor grad = full({kNumbers}, -1.0f, DType::kFloat32, Stream{});
  const Tensor ends = tensor_of<int64_t>({kNumbers}, {1});
  const Tensor groups = tensor_of<int32_t>({0}, {1});
  const Tensor places = tensor_of<int64_t>({8, 0, 0, kNumbers, kNumbers}, {1, 5});
  constexpr double kRate = 0x1p-7 / 10;
  EXPECT_EQ(static_cast<float>(BFloat16(static_cast<float>(1 + kRate))), 1.0f);
  for (uint32_t step = 1; step <= kSteps; ++step) {
    sgd_momentum({}, main.view(), momentum.view(), grad.view(),
                 {ends.view(), groups.view(), {}, {ends.view(), places.view(), step}},
                 std::vector<SgdNumbers>{{.lr = kRate}}, rounding_decision().view(), Stream{});
  }
  double sum = 0;
  for (const BFloat16 x : main.span<BFloat16>()) sum += static_cast<float>(x);
  EXPECT_NEAR(sum / kNumbers, 1 + kSteps * kRate, 0.002);
}

}  // namespace
}  // namespace megatron::kernels
