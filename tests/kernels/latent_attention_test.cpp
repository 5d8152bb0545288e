#include "megatron/kernels/latent_attention.h"

#include <cmath>
#include <utility>
#include <vector>

#include "megatron/kernels/fp8_rows.h"
#include "megatron/kernels/int8_matmul.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kRowTokens = 37, kTokensOfPage = 5, kLatentPages = 9, kReaders = 5;
constexpr int64_t kLatentWidth = 21, kRotatedWidth = 6, kBothWidths = kLatentWidth + kRotatedWidth;

Tensor side_by_side(const Tensor& x, const Tensor& y) {
  const int64_t rows = x.numel() / x.size(x.rank() - 1);
  const int64_t a = x.size(x.rank() - 1), b = y.size(y.rank() - 1);
  Tensor both({rows, a + b}, DType::kFloat32, Stream{});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < a + b; ++i) {
      both.span<float>()[static_cast<size_t>(row * (a + b) + i)] =
          i < a ? x.span<float>()[static_cast<size_t>(row * a + i)]
                : y.span<float>()[static_cast<size_t>(row * b + i - a)];
    }
  }
  return both;
}

// A text of kRowTokens in the pages 8, 6, 0, 2, 4, 7, 1, 5; another of one token in page 3.
class LatentPagesTest : public testing::Test {
 protected:
  void put(DType dtype) {
    const Shape at = {kLatentPages, kTokensOfPage, 1, 1};
    keys_ = zeros({at[0], at[1], 1, kRotatedWidth}, dtype, Stream{});
    latents_ = zeros({at[0], at[1], 1, kLatentWidth}, dtype, Stream{});
    if (dtype == DType::kFloat8E4M3) {
      scales_ = zeros({at[0], at[1], 1, 2}, DType::kFloat32, Stream{});
    }
    std::vector<int32_t> slots;
    for (int64_t i = 0; i < kRowTokens; ++i) {
      const int64_t page = row_pages_[static_cast<size_t>(i / kTokensOfPage)];
      slots.push_back(static_cast<int32_t>(page * kTokensOfPage + i % kTokensOfPage));
    }
    slots[1] = -1;  // put below
    const auto put_tokens = [&](const std::vector<int32_t>& to) {
      kernels::put_latents(pages(), kernels::heads_of(key_.view(), 1),
                           kernels::heads_of(latent_.view(), 1),
                           {to.data(), {kRowTokens}, DType::kInt32}, Stream{});
    };
    put_tokens(slots);
    std::vector<int32_t> second(static_cast<size_t>(kRowTokens), -1);
    second[1] = row_pages_[0] * static_cast<int32_t>(kTokensOfPage) + 1;
    put_tokens(second);
    second[1] = 3 * kTokensOfPage;  // the other text
    put_tokens(second);
  }
  kernels::KeyValuePages pages() {
    return {keys_.view(), latents_.view(), scales_.defined() ? scales_.view() : TensorView{}};
  }

  // Rows: all tokens of the text, 30 of them, none, and the other text.
  Tensor attended(const kernels::PagedSettings& settings) {
    Tensor y = zeros({4, 1, kReaders * kLatentWidth}, DType::kFloat32, Stream{});
    kernels::latent_attention(kernels::heads_of(y.view(), kReaders), pages(),
                              kernels::heads_of(q_latent_.view(), kReaders),
                              kernels::heads_of(q_rotated_.view(), kReaders), table(), settings,
                              Stream{});
    return y;
  }
  kernels::PageTable table() const {
    return {{table_.data(), {4, 8}, DType::kInt32},
            {lengths_.data(), {4}, DType::kInt32},
            {queries_.data(), {4}, DType::kInt32},
            kRowTokens};
  }

  // The first `length` tokens as keys of latent and rotated channels, for one query.
  Tensor expected(int64_t query, int64_t length, const kernels::PagedSettings& paged) {
    Tensor key({length, 1, kRotatedWidth}, DType::kFloat32, Stream{});
    Tensor latent({length, 1, kLatentWidth}, DType::kFloat32, Stream{});
    kernels::take_latents(kernels::heads_of(key.view(), 1), kernels::heads_of(latent.view(), 1),
                          pages(), {row_pages_.data(), {8}, DType::kInt32}, Stream{});
    const Tensor k = side_by_side(latent, key).reshape({length, 1, kBothWidths});
    const Tensor v = side_by_side(latent, zeros(key.shape(), DType::kFloat32, Stream{}))
                         .reshape({length, 1, kBothWidths});
    const Tensor q = side_by_side(q_latent_.slice(query, 1).reshape({kReaders, kLatentWidth}),
                                  q_rotated_.slice(query, 1).reshape({kReaders, kRotatedWidth}))
                         .reshape({1, 1, kReaders * kBothWidths});
    Tensor y({1, 1, kReaders * kBothWidths}, DType::kFloat32, Stream{});
    kernels::attention_forward(kernels::heads_of(y.view(), kReaders), {},
                               kernels::heads_of(q.view(), kReaders),
                               kernels::heads_of(k.view(), 1), kernels::heads_of(v.view(), 1),
                               {.scale = paged.scale,
                                .is_causal = true,
                                .query_offset = length - 1,
                                .window = paged.window,
                                .logit_cap = paged.logit_cap,
                                .sinks = paged.sinks},
                               {}, Stream{});
    Tensor first({1, 1, kReaders * kLatentWidth}, DType::kFloat32, Stream{});
    for (int64_t head = 0; head < kReaders; ++head) {
      for (int64_t i = 0; i < kLatentWidth; ++i) {
        first.span<float>()[static_cast<size_t>(head * kLatentWidth + i)] =
            y.span<float>()[static_cast<size_t>(head * kBothWidths + i)];
      }
    }
    return first;
  }

  const std::vector<int32_t> row_pages_ = {8, 6, 0, 2, 4, 7, 1, 5};
  const std::vector<int32_t> table_ = {8, 6, 0, 2, 4, 7, 1, 5, 8, 6, 0, 2, 4, 7, 1, 5,
                                       0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<int32_t> lengths_ = {kRowTokens, 30, 0, 1};
  const std::vector<int32_t> queries_ = {2, 0, 0, 1};
  const Tensor key_ = random_normal({kRowTokens, 1, kRotatedWidth}, {.seed = 1});
  const Tensor latent_ = random_normal({kRowTokens, 1, kLatentWidth}, {.seed = 2});
  const Tensor q_latent_ = random_normal({4, 1, kReaders* kLatentWidth}, {.seed = 3});
  const Tensor q_rotated_ = random_normal({4, 1, kReaders* kRotatedWidth}, {.seed = 4});
  Tensor keys_, latents_, scales_;
};

TEST_F(LatentPagesTest, AttendsAsOverKeysOfBothParts) {
  const Tensor sinks = random_normal({kReaders}, {.seed = 6});
  for (const DType dtype : {DType::kFloat32, DType::kFloat8E4M3}) {
    put(dtype);
    for (const int64_t window : {0, 1, 7, 100}) {
      for (const bool has_more : {false, true}) {
        kernels::PagedSettings settings{.scale = 0.4f, .window = window};
        if (has_more) {
          settings.logit_cap = 1.5f;
          settings.sinks = sinks.view();
        }
        const Tensor got = attended(settings);
        expect_close(got.slice(2, 1), expected(2, kRowTokens, settings), Tolerance{1e-5, 1e-5});
        expect_close(got.slice(0, 1), expected(0, 30, settings), Tolerance{1e-5, 1e-5});
        expect_close(got.slice(3, 1),
                     zeros({1, 1, kReaders * kLatentWidth}, DType::kFloat32, Stream{}),
                     Tolerance{0, 0});
        if (!has_more && dtype == DType::kFloat32) {  // one token: its latent, for each head
          for (int64_t head = 0; head < kReaders; ++head) {
            expect_close(got.slice(1, 1).reshape({kReaders, kLatentWidth}).slice(head, 1),
                         latent_.slice(1, 1).reshape({1, kLatentWidth}));
          }
        }
      }
    }
  }
}

TEST_F(LatentPagesTest, NanStays) {
  put(DType::kFloat32);
  latents_.span<float>()[static_cast<size_t>((7 * kTokensOfPage + 4) * kLatentWidth)] =
      NAN;  // token 29
  const Tensor got = attended({.scale = 1});
  EXPECT_TRUE(std::isnan(got.span<float>()[1]));
  EXPECT_FALSE(std::isnan(attended({.scale = 1, .window = 7}).slice(2, 1).span<float>()[1]));
}

TEST_F(LatentPagesTest, SlotsAreThoseOfTheLastTokens) {
  Tensor slots({4}, DType::kInt32, Stream{});
  kernels::new_token_slots(slots.view(), table(), kTokensOfPage, Stream{});
  const auto got = std::as_const(slots).span<int32_t>();
  EXPECT_EQ((std::vector<int32_t>(got.begin(), got.end())),
            (std::vector<int32_t>{7 * 5 + 4, 3 * 5, 5 * 5 + 1, -1}));
}

TEST(MultiplyHeadsTest, MultipliesPartsOfEachHeadsMatrix) {
  constexpr int64_t kRows = 7, kColumns = 9, kFirst = 2, kCount = 4;
  const Tensor w = random_normal({kReaders, kRows, kColumns}, {.seed = 1});
  for (const bool is_rounded : {false, true}) {
    Tensor numbers = w, scales, wide = w;
    if (is_rounded) {
      numbers = Tensor(w.shape(), DType::kInt8, Stream{});
      scales = Tensor({kReaders, kRows}, DType::kFloat32, Stream{});
      const Shape flat = {kReaders * kRows, kColumns};
      kernels::quantize_rows(numbers.reshape(flat).view(),
                             scales.reshape({kReaders * kRows}).view(), w.reshape(flat).view(),
                             Stream{});
      wide = empty_like(w);
      for (int64_t i = 0; i < w.numel(); ++i) {
        wide.span<float>()[static_cast<size_t>(i)] =
            static_cast<float>(numbers.span<int8_t>()[static_cast<size_t>(i)]) *
            scales.span<float>()[static_cast<size_t>(i / kColumns)];
      }
    }
    const ConstView of_rows = scales.defined() ? std::as_const(scales).view() : ConstView{};
    for (const int64_t tokens : {0, 1, 19}) {
      const Tensor x = random_normal({kReaders, tokens, kCount}, {.seed = 2});
      const Tensor z = random_normal({kReaders, tokens, kColumns}, {.seed = 3});
      Tensor y({kReaders, tokens, kColumns}, DType::kFloat32, Stream{});
      Tensor back({kReaders, tokens, kCount}, DType::kFloat32, Stream{});
      kernels::multiply_heads(y.view(), x.view(), std::as_const(numbers).view(), of_rows, kFirst,
                              kernels::Transpose::kNo, Stream{});
      kernels::multiply_heads(back.view(), z.view(), std::as_const(numbers).view(), of_rows, kFirst,
                              kernels::Transpose::kYes, Stream{});
      for (int64_t head = 0; head < kReaders; ++head) {
        for (int64_t t = 0; t < tokens; ++t) {
          const auto of = [&](int64_t row, int64_t column) {
            return element(wide, (head * kRows + kFirst + row) * kColumns + column);
          };
          for (int64_t column = 0; column < kColumns; ++column) {
            double sum = 0;
            for (int64_t row = 0; row < kCount; ++row) {
              sum += element(x, (head * tokens + t) * kCount + row) * of(row, column);
            }
            EXPECT_NEAR(element(y, (head * tokens + t) * kColumns + column), sum, 1e-5);
          }
          for (int64_t row = 0; row < kCount; ++row) {
            double sum = 0;
            for (int64_t column = 0; column < kColumns; ++column) {
              sum += element(z, (head * tokens + t) * kColumns + column) * of(row, column);
            }
            EXPECT_NEAR(element(back, (head * tokens + t) * kCount + row), sum, 1e-5);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
