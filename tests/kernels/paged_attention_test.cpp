#include "megatron/kernels/paged_attention.h"

#include <vector>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kHeads = 4, kGroups = 2, kSize = 8, kPageTokens = 3, kMost = 4;
constexpr int64_t kDistances = 5;

// Row 0 has 10 tokens in pages 7, 1, 4, 2, row 1 nothing, row 2 one token in page 5.
class PagedAttentionTest : public testing::Test {
 protected:
  const std::vector<int32_t> pages_ = {7, 1, 4, 2, 0, 0, 0, 0, 5, 0, 0, 0};
  const std::vector<int32_t> lengths_ = {10, 0, 1};
  const std::vector<int32_t> queries_ = {1, 0, 0};
  Tensor keys_ = random_normal({8, kPageTokens, kGroups, kSize}, {.seed = 1});
  Tensor values_ = random_normal({8, kPageTokens, kGroups, kSize}, {.seed = 2});
  const Tensor qkv_ = random_normal({2, 1, (kHeads + 2 * kGroups) * kSize}, {.seed = 3});
  const kernels::Qkv<kernels::ConstHeadsView> heads_ =
      kernels::split_qkv(qkv_.view(), kHeads, kGroups);

  bool has_new_tokens_ = true;

  Tensor attended(const kernels::PagedSettings& settings) {
    Tensor y = zeros({2, 1, kHeads * kSize}, DType::kFloat32, Stream{});
    kernels::paged_attention(kernels::heads_of(y.view(), kHeads), keys_.view(), values_.view(),
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
    Tensor y({10, 1, kGroups * kSize}, DType::kFloat32, Stream{});
    const std::vector<int64_t> pages = {7, 1, 4, 2};
    for (int64_t i = 0; i < 10; ++i) {
      Tensor to = y.slice(i, 1);
      const Tensor page = store.slice(pages[static_cast<size_t>(i / kPageTokens)], 1);
      copy_into(to, page.reshape({kPageTokens, 1, kGroups * kSize}).slice(i % kPageTokens, 1));
    }
    return y;
  }
};

TEST_F(PagedAttentionTest, AttendsAsOverAdjacentTokens) {
  const Tensor slopes = random_normal({kHeads}, {.seed = 4});
  const Tensor bias = random_normal({kHeads, kDistances}, {.seed = 5});
  // The bias of token 9 by key: distances of 5 and more have none.
  Tensor by_key = zeros({kHeads, 10}, DType::kFloat32, Stream{});
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t distance = 0; distance < kDistances; ++distance) {
      by_key.span<float>()[static_cast<size_t>(head * 10 + 9 - distance)] =
          bias.span<float>()[static_cast<size_t>(head * kDistances + distance)];
    }
  }
  const Tensor got =
      attended({.scale = 0.3f, .alibi_slopes = slopes.view(), .distance_bias = bias.view()});

  const Tensor keys = gathered(keys_);
  const Tensor values = gathered(values_);
  Tensor want({1, 1, kHeads * kSize}, DType::kFloat32, Stream{});
  kernels::ConstHeadsView q = heads_.q;
  q.data = static_cast<const float*>(q.data) + q.stride_s;  // token 1
  q.s = 1;
  kernels::attention_forward(kernels::heads_of(want.view(), kHeads), {}, q,
                             kernels::heads_of(keys.view(), kGroups),
                             kernels::heads_of(values.view(), kGroups),
                             {.scale = 0.3f,
                              .is_causal = true,
                              .query_offset = 9,
                              .alibi_slopes = slopes.view(),
                              .relative_bias = by_key.view()},
                             {}, Stream{});
  expect_close(got.slice(1, 1), want, Tolerance{1e-5, 1e-5});
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
    return store.slice(page, 1).reshape({kPageTokens, kGroups * kSize}).slice(0, 1);
  };
  for (const auto& [page, token] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {5, 0}}) {
    for (int64_t group = 0; group < kGroups; ++group) {
      for (int64_t c = 0; c < kSize; ++c) {
        const int64_t from = token * heads_.k.stride_s + heads_.k.offset(0, group) + c;
        EXPECT_EQ(element(place(keys_, page), group * kSize + c),
                  static_cast<const float*>(heads_.k.data)[from]);
        // A row of one token has its value as output.
        const int64_t head = group * (kHeads / kGroups);
        if (token == 0) {
          EXPECT_NEAR(element(y, head * kSize + c), static_cast<const float*>(heads_.v.data)[from],
                      1e-6);
        }
      }
    }
  }
  for (const int64_t page : {0, 1, 3, 4, 6, 7}) {
    expect_identical(keys_.slice(page, 1), before.slice(page, 1));
  }
}

TEST_F(PagedAttentionTest, NamesAWrongTable) {
  Tensor y = zeros({2, 1, kHeads * kSize}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::paged_attention(kernels::heads_of(y.view(), kHeads), keys_.view(),
                                       values_.view(), heads_.q, heads_.k, heads_.v,
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
