#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/kernels/fp8_rows.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kPagedAttentionHeads = 4, kGroups = 2, kPagedHeadSize = 8, kPageTokens = 3,
                  kMost = 4;
constexpr int64_t kDistances = 5;

// Row 0 has 10 tokens in pages 7, 1, 4, 2, row 1 nothing, row 2 one token in page 5.
class PagedAttentionTest : public testing::Test {
 protected:
  const std::vector<int32_t> pages_ = {7, 1, 4, 2, 0, 0, 0, 0, 5, 0, 0, 0};
  const std::vector<int32_t> lengths_ = {10, 0, 1};
  const std::vector<int32_t> queries_ = {1, 0, 0};
  Tensor keys_ = random_normal({8, kPageTokens, kGroups, kPagedHeadSize}, {.seed = 1});
  Tensor values_ = random_normal({8, kPageTokens, kGroups, kPagedHeadSize}, {.seed = 2});
  const Tensor qkv_ =
      random_normal({2, 1, (kPagedAttentionHeads + 2 * kGroups) * kPagedHeadSize}, {.seed = 3});
  const kernels::Qkv<kernels::ConstHeadsView> heads_ =
      kernels::split_qkv(qkv_.view(), kPagedAttentionHeads, kGroups);

  bool has_new_tokens_ = true;
  Tensor scales_;  // of keys and values in FP8

  kernels::KeyValuePages pages_of_store() {
    return {keys_.view(), values_.view(), scales_.defined() ? scales_.view() : TensorView{}};
  }
  // From now on the pages are in FP8: rounded here by the definition.
  void round_pages() {
    const Shape shape = keys_.shape();
    const int64_t rows = keys_.numel() / kPagedHeadSize;
    scales_ = Tensor({shape[0], shape[1], shape[2], 2}, DType::kFloat32, Stream{});
    const auto rounded = [&](const Tensor& x, int64_t kind) {
      Tensor numbers(shape, DType::kFloat8E4M3, Stream{});
      Tensor scales({rows}, DType::kFloat32, Stream{});
      kernels::fp8_quantize_rows(numbers.reshape({rows, kPagedHeadSize}).view(), scales.view(),
                                 x.reshape({rows, kPagedHeadSize}).view(), Stream{});
      for (int64_t r = 0; r < rows; ++r) {
        scales_.span<float>()[static_cast<size_t>(2 * r + kind)] =
            scales.span<float>()[static_cast<size_t>(r)];
      }
      return numbers;
    };
    keys_ = rounded(keys_, 0);
    values_ = rounded(values_, 1);
  }
  // All tokens of all pages, as attention reads them.
  std::pair<Tensor, Tensor> widened() {
    const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
    const Shape shape = {8 * kPageTokens, 1, kGroups * kPagedHeadSize};
    Tensor k(shape, DType::kFloat32, Stream{});
    Tensor v(shape, DType::kFloat32, Stream{});
    kernels::take_from_pages(kernels::heads_of(k.view(), kGroups),
                             kernels::heads_of(v.view(), kGroups), pages_of_store(),
                             {all.data(), {8}, DType::kInt32}, Stream{});
    const Shape store = {8, kPageTokens, kGroups, kPagedHeadSize};
    return {k.reshape(store), v.reshape(store)};
  }

  Tensor attended(const kernels::PagedSettings& settings) {
    Tensor y = zeros({2, 1, kPagedAttentionHeads * kPagedHeadSize}, DType::kFloat32, Stream{});
    kernels::paged_attention(kernels::heads_of(y.view(), kPagedAttentionHeads), pages_of_store(),
                             heads_.q, has_new_tokens_ ? heads_.k : kernels::ConstHeadsView{},
                             has_new_tokens_ ? heads_.v : kernels::ConstHeadsView{},
                             {{pages_.data(), {3, kMost}, DType::kInt32},
                              {lengths_.data(), {3}, DType::kInt32},
                              {queries_.data(), {3}, DType::kInt32},
                              10},
                             settings, {}, Stream{});
    return y;
  }

  // Tokens 0 .. 9 of row 0, one after the other.
  static Tensor gathered(const Tensor& store) {
    Tensor y({10, 1, kGroups * kPagedHeadSize}, DType::kFloat32, Stream{});
    const std::vector<int64_t> pages = {7, 1, 4, 2};
    for (int64_t i = 0; i < 10; ++i) {
      Tensor to = y.slice(i, 1);
      const Tensor page = store.slice(pages[static_cast<size_t>(i / kPageTokens)], 1);
      copy_into(to,
                page.reshape({kPageTokens, 1, kGroups * kPagedHeadSize}).slice(i % kPageTokens, 1));
    }
    return y;
  }

  // Attention of token 1 to row 0 by the kernel for adjacent tokens.
  Tensor adjacent(const kernels::AttentionSettings& settings) const {
    const Tensor keys = gathered(keys_);
    const Tensor values = gathered(values_);
    kernels::ConstHeadsView q = heads_.q;
    q.data = static_cast<const float*>(q.data) + q.stride_s;
    q.s = 1;
    Tensor y({1, 1, kPagedAttentionHeads * kPagedHeadSize}, DType::kFloat32, Stream{});
    kernels::attention_forward(kernels::heads_of(y.view(), kPagedAttentionHeads), {}, q,
                               kernels::heads_of(keys.view(), kGroups),
                               kernels::heads_of(values.view(), kGroups), settings, {}, Stream{});
    return y;
  }
};

TEST_F(PagedAttentionTest, AttendsAsOverAdjacentTokens) {
  const Tensor slopes = random_normal({kPagedAttentionHeads}, {.seed = 4});
  const Tensor bias = random_normal({kPagedAttentionHeads, kDistances}, {.seed = 5});
  // The bias of token 9 by key: distances of 5 and more have none.
  Tensor by_key = zeros({kPagedAttentionHeads, 10}, DType::kFloat32, Stream{});
  for (int64_t head = 0; head < kPagedAttentionHeads; ++head) {
    for (int64_t distance = 0; distance < kDistances; ++distance) {
      by_key.span<float>()[static_cast<size_t>(head * 10 + 9 - distance)] =
          bias.span<float>()[static_cast<size_t>(head * kDistances + distance)];
    }
  }
  const Tensor got =
      attended({.scale = 0.3f, .alibi_slopes = slopes.view(), .distance_bias = bias.view()});

  expect_close(got.slice(1, 1),
               adjacent({.scale = 0.3f,
                         .is_causal = true,
                         .query_offset = 9,
                         .alibi_slopes = slopes.view(),
                         .relative_bias = by_key.view()}),
               Tolerance{1e-5, 1e-5});
}

TEST_F(PagedAttentionTest, WindowCapAndSinks) {
  const Tensor sinks = random_normal({kPagedAttentionHeads}, {.seed = 6});
  for (const int64_t window : {0, 1, 4, 9, 20}) {
    const Tensor got =
        attended({.scale = 2.0f, .window = window, .logit_cap = 1.5f, .sinks = sinks.view()});
    expect_close(got.slice(1, 1),
                 adjacent({.scale = 2.0f,
                           .is_causal = true,
                           .query_offset = 9,
                           .window = window,
                           .logit_cap = 1.5f,
                           .sinks = sinks.view()}),
                 Tolerance{1e-5, 1e-5});
  }
}

// Without new tokens the pages stay, and a row attends to what is in them.
TEST_F(PagedAttentionTest, AttendsToPagesAlone) {
  const Tensor with_new_tokens = attended({.scale = 0.3f});
  const Tensor keys = copied(keys_);
  const Tensor values = copied(values_);
  has_new_tokens_ = false;
  expect_identical(attended({.scale = 0.3f}), with_new_tokens);
  expect_identical(keys_, keys);
  expect_identical(values_, values);
}

TEST_F(PagedAttentionTest, PutsTheNewTokenIntoItsPage) {
  const Tensor before = copied(keys_);
  const Tensor y = attended({});
  // Row 0's token is the first of page 2, row 2's the first of page 5.
  const auto place = [&](const Tensor& store, int64_t page) {
    return store.slice(page, 1).reshape({kPageTokens, kGroups * kPagedHeadSize}).slice(0, 1);
  };
  for (const auto& [page, token] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {5, 0}}) {
    for (int64_t group = 0; group < kGroups; ++group) {
      for (int64_t c = 0; c < kPagedHeadSize; ++c) {
        const int64_t from = token * heads_.k.stride_s + heads_.k.offset(0, group) + c;
        EXPECT_EQ(element(place(keys_, page), group * kPagedHeadSize + c),
                  static_cast<const float*>(heads_.k.data)[from]);
        // A row of one token has its value as output.
        const int64_t head = group * (kPagedAttentionHeads / kGroups);
        if (token == 0) {
          EXPECT_NEAR(element(y, head * kPagedHeadSize + c),
                      static_cast<const float*>(heads_.v.data)[from], 1e-6);
        }
      }
    }
  }
  for (const int64_t page : {0, 1, 3, 4, 6, 7}) {
    expect_identical(keys_.slice(page, 1), before.slice(page, 1));
  }
}

TEST_F(PagedAttentionTest, TakesTheFirstTokensOfARow) {
  Tensor k({10, 1, kGroups * kPagedHeadSize}, DType::kFloat32, Stream{});
  Tensor v({10, 1, kGroups * kPagedHeadSize}, DType::kFloat32, Stream{});
  kernels::take_from_pages(kernels::heads_of(k.view(), kGroups),
                           kernels::heads_of(v.view(), kGroups), pages_of_store(),
                           {pages_.data(), {kMost}, DType::kInt32}, Stream{});
  expect_identical(k, gathered(keys_));
  expect_identical(v, gathered(values_));
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::take_from_pages(kernels::heads_of(k.view(), kGroups),
                                       kernels::heads_of(v.view(), kGroups), pages_of_store(),
                                       {pages_.data(), {3}, DType::kInt32}, Stream{});
            }),
            "take_from_pages: 10 tokens are not in pages of 9");
}

// Pages in FP8 are pages of their rounded numbers, also of the new token.
TEST_F(PagedAttentionTest, ReadsPagesInFp8) {
  const Tensor slopes = random_normal({kPagedAttentionHeads}, {.seed = 4});
  const kernels::PagedSettings settings{.scale = 0.3f, .alibi_slopes = slopes.view()};
  const Tensor exact = attended(settings);
  keys_ = random_normal({8, kPageTokens, kGroups, kPagedHeadSize}, {.seed = 1});
  values_ = random_normal({8, kPageTokens, kGroups, kPagedHeadSize}, {.seed = 2});
  round_pages();
  const Tensor got = attended(settings);
  std::tie(keys_, values_) = widened();
  scales_ = {};
  has_new_tokens_ = false;  // the new ones are there, rounded
  expect_close(got, attended(settings), Tolerance{1e-6, 1e-6});
  expect_close(got, exact, Tolerance{0, 0.2});  // scores change by up to 1/16 of their terms
}

TEST_F(PagedAttentionTest, PutsTokensIntoPagesInFp8) {
  round_pages();
  const std::vector<int32_t> slots = {-1, 4};
  const Tensor before = copied(keys_);
  kernels::put_into_pages(pages_of_store(), heads_.k, heads_.v, {slots.data(), {2}, DType::kInt32},
                          Stream{});
  const auto [keys, values] = widened();
  float largest_error = 0;
  for (int64_t group = 0; group < kGroups; ++group) {
    float largest = 0;
    const auto* const want =
        static_cast<const float*>(heads_.v.data) + heads_.v.stride_s + heads_.v.offset(0, group);
    for (int64_t c = 0; c < kPagedHeadSize; ++c) largest = std::max(largest, std::abs(want[c]));
    for (int64_t c = 0; c < kPagedHeadSize; ++c) {
      const auto error = static_cast<float>(
          std::abs(element(values, (4 * kGroups + group) * kPagedHeadSize + c) - want[c]));
      EXPECT_LE(error, std::max(std::abs(want[c]) / 16, 0x1p-10f * largest / 448) * 1.0001f);
      largest_error = std::max(largest_error, error);
    }
  }
  EXPECT_GT(largest_error, 0);
  for (const int64_t page : {0, 2, 3, 4, 5, 6, 7}) {
    expect_identical(keys_.slice(page, 1), before.slice(page, 1));
  }
}

TEST_F(PagedAttentionTest, Fp8OnAGpuNeeds16BitsAndNarrowHeads) {
  const Device gpu{DeviceType::kCuda, 0};
  EXPECT_TRUE(kernels::has_fp8_pages(DType::kBFloat16, 128, gpu));
  EXPECT_TRUE(kernels::has_fp8_pages(DType::kFloat16, 80, gpu));
  EXPECT_FALSE(kernels::has_fp8_pages(DType::kFloat32, 64, gpu));
  EXPECT_FALSE(kernels::has_fp8_pages(DType::kBFloat16, 256, gpu));
  EXPECT_FALSE(kernels::has_fp8_pages(DType::kBFloat16, 40, gpu));
  EXPECT_TRUE(kernels::has_fp8_pages(DType::kFloat32, 40, Device{}));
}

TEST_F(PagedAttentionTest, NamesAWrongTable) {
  Tensor y = zeros({2, 1, kPagedAttentionHeads * kPagedHeadSize}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::paged_attention(kernels::heads_of(y.view(), kPagedAttentionHeads),
                                       pages_of_store(), heads_.q, heads_.k, heads_.v,
                                       {{pages_.data(), {3, kMost}, DType::kInt32},
                                        {lengths_.data(), {2}, DType::kInt32},
                                        {queries_.data(), {3}, DType::kInt32},
                                        10},
                                       {}, {}, Stream{});
            }),
            "paged_attention: queries has shape [3], expected [2]");
}

}  // namespace
}  // namespace megatron
