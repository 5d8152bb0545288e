#include "megatron/kernels/merge_heads.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::heads_of;

constexpr int64_t kQueries = 70;
constexpr int64_t kKeys = 150;
constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadSize = 12;

Tensor lse_of(float value) { return full({kBatch, kHeads, kQueries}, value, DType::kFloat32, {}); }

struct Attended {
  Tensor out, lse;
};

// Attention to keys [begin, begin + count).
Attended attended(int64_t begin, int64_t count, const Tensor& documents, DType dtype) {
  const auto random = [&](int64_t s, uint64_t seed) {
    return random_normal({s, kBatch, kHeads * kHeadSize}, {.seed = seed, .dtype = dtype});
  };
  const Tensor q = random(kQueries, 1), k = random(kKeys, 2), v = random(kKeys, 3);
  Attended y{empty_like(q), lse_of(0)};
  kernels::attention_forward(heads_of(y.out.view(), kHeads), y.lse.view(),
                             heads_of(q.view(), kHeads),
                             heads_of(std::as_const(k).slice(begin, count).view(), kHeads),
                             heads_of(std::as_const(v).slice(begin, count).view(), kHeads),
                             {.scale = 0.4f,
                              .query_offset = 200,
                              .key_offset = begin,
                              .document_starts = documents.view()},
                             {}, Stream{});
  return y;
}

// Some queries see only the first keys, some only the last ones, and some none.
Tensor documents() {
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < kBatch; ++batch) {
    for (int32_t i = 0; i < kQueries; ++i) starts.push_back(i < 30 ? 0 : i < 60 ? 90 : 180);
  }
  return tensor_of(starts, {kBatch, kQueries});
}

TEST(MergeHeadsTest, PartsOfAttentionBecomeTheWhole) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor starts = documents();
    const Attended want = attended(0, kKeys, starts, dtype);
    for (const bool is_in_fp32 : {false, true}) {
      Attended got = attended(0, 80, starts, dtype);
      if (is_in_fp32) got.out = cast(got.out, DType::kFloat32);
      for (const auto& [begin, count] : {std::pair{80, 1}, std::pair{81, 69}}) {
        const Attended part = attended(begin, count, starts, dtype);
        kernels::merge_attention(heads_of(got.out.view(), kHeads), got.lse.view(), 0,
                                 heads_of(std::as_const(got.out).view(), kHeads),
                                 heads_of(std::as_const(part.out).view(), kHeads),
                                 std::as_const(part.lse).view(), Stream{});
      }
      expect_close(got.lse, want.lse, tolerance_of(DType::kFloat32).for_terms(kKeys), "lse");
      Tolerance close = tolerance_of(dtype).for_terms(4);
      close.absolute += close.relative;
      expect_close(got.out, want.out, close, "out");
      EXPECT_EQ(element(got.out, 65 * kBatch * kHeads * kHeadSize), 0);
      EXPECT_EQ(element(got.lse, 65), std::numeric_limits<double>::infinity());
    }
  }
}

// The log-sum-exps of some queries of several, and an output that is not one of the inputs.
TEST(MergeHeadsTest, MergesSomeQueries) {
  constexpr int64_t kBefore = 9;
  constexpr int64_t kAll = kBefore + kQueries + 4;
  const Tensor starts = documents();
  const Attended own = attended(0, 80, starts, DType::kFloat32);
  const Attended part = attended(80, 70, starts, DType::kFloat32);
  Attended want{copied(own.out), copied(own.lse)};
  kernels::merge_attention(heads_of(want.out.view(), kHeads), want.lse.view(), 0,
                           heads_of(own.out.view(), kHeads), heads_of(part.out.view(), kHeads),
                           part.lse.view(), Stream{});
  Tensor all = full({kBatch, kHeads, kAll}, -7.0f, DType::kFloat32, Stream{});
  const auto at = [](int64_t row, int64_t i) {
    return static_cast<size_t>(row * kAll + kBefore + i);
  };
  for (int64_t row = 0; row < kBatch * kHeads; ++row) {
    for (int64_t i = 0; i < kQueries; ++i) {
      all.span<float>()[at(row, i)] = static_cast<float>(element(own.lse, row * kQueries + i));
    }
  }
  Tensor out = cast(own.out, DType::kFloat32);
  kernels::merge_attention(heads_of(out.view(), kHeads), all.view(), kBefore,
                           heads_of(own.out.view(), kHeads), heads_of(part.out.view(), kHeads),
                           part.lse.view(), Stream{});
  expect_identical(out, want.out);
  for (int64_t row = 0; row < kBatch * kHeads; ++row) {
    for (int64_t i = -kBefore; i < kQueries + 4; ++i) {
      const bool is_merged = i >= 0 && i < kQueries;
      EXPECT_EQ(all.span<float>()[at(row, i)],
                is_merged ? static_cast<float>(element(want.lse, row * kQueries + i)) : -7.0f);
    }
  }
}

// NaN propagates to the result, also beside a query that sees no key.
TEST(MergeHeadsTest, NotANumberIsNotLost) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float none = std::numeric_limits<float>::infinity();
  for (const auto& [own, other] :
       {std::pair{nan, 1.0f}, std::pair{1.0f, nan}, std::pair{nan, none}, std::pair{none, nan}}) {
    const kernels::MergedQuery merged(own, other);
    EXPECT_TRUE(std::isnan(merged.lse)) << own << " " << other;
    EXPECT_TRUE(std::isnan(merged.own + merged.other)) << own << " " << other;
  }
}

TEST(MergeHeadsTest, ConvertsAndAddsHeadsOfAnyTypes) {
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType to : dtypes) {
    for (const DType from : dtypes) {
      const Tensor term = random_normal({5, 2, 24}, {.seed = 1, .dtype = from});
      const Tensor before = random_normal({5, 2, 24}, {.seed = 2, .dtype = to});
      Tensor sum = empty_like(before);
      kernels::add_heads(heads_of(sum.view(), 3), heads_of(before.view(), 3),
                         heads_of(term.view(), 3), Stream{});
      Tensor in_place = copied(before);
      kernels::add_heads(heads_of(in_place.view(), 3), heads_of(before.view(), 3),
                         heads_of(term.view(), 3), Stream{});
      expect_identical(in_place, sum);
      Tensor converted = empty_like(before);
      kernels::convert_heads(heads_of(converted.view(), 3), heads_of(term.view(), 3), Stream{});
      for (int64_t i = 0; i < sum.numel(); ++i) {
        const double exact = element(term, i) + element(before, i);
        const Tolerance rounded = tolerance_of(to);
        EXPECT_NEAR(element(sum, i), exact, rounded.relative * std::abs(exact) + rounded.absolute);
      }
      expect_identical(converted, cast(term, to));
    }
  }
}

TEST(MergeHeadsTest, RefusesOtherShapes) {
  Tensor x({4, 1, 24}, DType::kFloat32, Stream{});
  const Tensor other({5, 1, 24}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::add_heads(heads_of(x.view(), 3), heads_of(x.view(), 3),
                                 heads_of(other.view(), 3), Stream{});
            }),
            "add_heads: b has shape [5, 1, 3, 8], expected [4, 1, 3, 8]");
}

}  // namespace
}  // namespace megatron
