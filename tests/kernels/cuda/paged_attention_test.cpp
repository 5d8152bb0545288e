#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

class PagedAttentionCudaTest : public CudaDtypeTest {
 protected:
  // fp32: sums of up to 256 products, of exponentials and of 1000 values in another order. 16 bits:
  // the GPU rounds probabilities, too, so that a mean of values of size 1 is off by half a unit.
  static Tolerance tolerance() {
    if (GetParam() == DType::kFloat32) return {.relative = 5e-5, .absolute = 2e-5};
    Tolerance of_16_bits = tolerance_of(GetParam());
    of_16_bits.absolute += GetParam() == DType::kBFloat16 ? 0x1p-9 : 0x1p-12;
    return of_16_bits;
  }
};

struct Case {
  int64_t heads, groups, d, page_tokens;
  std::vector<int32_t> lengths;
};
// One key; parts of 128 keys, and of 512, and one key more; many parts; padding; groups of up to 8
// heads, of up to 16 and of more; wide heads.
const Case kCases[] = {{1, 1, 8, 16, {1}},
                       {4, 4, 64, 16, {128, 129, 1, 300}},
                       {3, 1, 40, 3, {5, 0, 70, 0}},
                       {8, 2, 128, 16, {1000, 17, 640}},
                       {12, 2, 64, 32, {257, 256}},
                       {6, 3, 256, 16, {150, 2}},
                       {8, 1, 64, 16, {512, 513, 1025}},
                       {24, 2, 128, 16, {512, 513, 1100}},
                       {20, 1, 64, 16, {1030, 90}}};

// Each row has pages of its own, in mixed order.
Tensor pages_of(const Case& c, int64_t most) {
  std::vector<int32_t> pages;
  const auto rows = static_cast<int64_t>(c.lengths.size());
  for (int64_t i = 0; i < rows * most; ++i) {
    pages.push_back(static_cast<int32_t>(i % most * rows + i / most));
  }
  return tensor_of(pages, {rows, most});
}

TEST_P(PagedAttentionCudaTest, AttendsToPages) {
  for (const Case& c : kCases) {
    for (const auto& [has_bias, has_new_tokens] :
         {std::pair{false, true}, {true, true}, {false, false}, {true, false}}) {
      const auto rows = static_cast<int64_t>(c.lengths.size());
      const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
      const int64_t most = (longest + c.page_tokens - 1) / c.page_tokens;
      const Shape store = {rows * most, c.page_tokens, c.groups, c.d};
      const int64_t tokens = rows + 2;
      std::vector<int32_t> queries;  // not in order
      for (int32_t i = 0; i < rows; ++i) queries.push_back(static_cast<int32_t>(rows) - i);
      const DType dtype = GetParam();
      const std::vector<Tensor> tensors = {
          zeros({tokens, 1, c.heads * c.d}, dtype, Stream{}),
          random_normal(store, {.seed = 1, .dtype = dtype}),
          random_normal(store, {.seed = 2, .dtype = dtype}),
          random_normal({tokens, 1, (c.heads + 2 * c.groups) * c.d}, {.seed = 3, .dtype = dtype}),
          pages_of(c, most),
          tensor_of(c.lengths, {rows}),
          tensor_of(queries, {rows}),
          random_normal({c.heads}, {.seed = 4, .stddev = 0.01f}),
          random_normal({c.heads, 40}, {.seed = 5})};
      expect_twins(tensors,
                   [&, with_bias = has_bias, with_new_tokens = has_new_tokens](
                       std::vector<Tensor>& t, Stream stream) {
                     auto qkv = kernels::split_qkv(std::as_const(t[3]).view(), c.heads, c.groups);
                     if (!with_new_tokens) qkv.k = qkv.v = {};
                     kernels::PagedSettings settings{.scale = 0.2f};
                     if (with_bias) {
                       settings.alibi_slopes = t[7].view();
                       settings.distance_bias = t[8].view();
                     }
                     // Graphs are made for rounded lengths.
                     const int64_t max_length = longest + 200;
                     const int64_t bytes = kernels::paged_attention_workspace_bytes(
                         rows, c.heads, c.d, max_length, stream);
                     Tensor workspace = zeros({std::max<int64_t>(bytes, 1)}, DType::kUInt8, stream);
                     // A second call finds the counters as the first one did.
                     for (int call = 0; call < 2; ++call) {
                       kernels::paged_attention(kernels::heads_of(t[0].view(), c.heads),
                                                t[1].view(), t[2].view(), qkv.q, qkv.k, qkv.v,
                                                {t[4].view(), t[5].view(), t[6].view(), max_length},
                                                settings, workspace.view(), stream);
                     }
                   },
                   {.tolerance = tolerance(),
                    .what = std::to_string(c.heads) + " heads of " + std::to_string(c.d)});
    }
  }
}

// The same row alone and among others, with other pages, has the same bits.
TEST_P(PagedAttentionCudaTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kHeads = 8, kGroups = 2, kSize = 64, kTokens = 16, kMost = 40;
  const Tensor qkv =
      random_normal({3, 1, (kHeads + 2 * kGroups) * kSize}, {.seed = 1, .dtype = GetParam()})
          .to(stream());
  const auto heads = kernels::split_qkv(std::as_const(qkv).view(), kHeads, kGroups);
  const Shape store = {3 * kMost, kTokens, kGroups, kSize};
  Tensor keys = random_normal(store, {.seed = 2, .dtype = GetParam()}).to(stream());
  Tensor values = random_normal(store, {.seed = 3, .dtype = GetParam()}).to(stream());
  const auto attended = [&](const std::vector<int32_t>& rows, const std::vector<int32_t>& lengths) {
    std::vector<int32_t> pages;
    for (const int32_t row : rows) {
      for (int32_t page = 0; page < kMost; ++page)
        pages.push_back(row * static_cast<int32_t>(kMost) + page);
    }
    const auto count = static_cast<int64_t>(rows.size());
    const Tensor table = tensor_of(pages, {count, kMost}).to(stream());
    const Tensor sizes = tensor_of(lengths, {count}).to(stream());
    const Tensor queries = tensor_of(rows, {count}).to(stream());
    const int64_t bytes =
        kernels::paged_attention_workspace_bytes(count, kHeads, kSize, 640, stream());
    Tensor workspace = zeros({bytes}, DType::kUInt8, stream());
    Tensor y = zeros({3, 1, kHeads * kSize}, GetParam(), stream());
    kernels::paged_attention(kernels::heads_of(y.view(), kHeads), keys.view(), values.view(),
                             heads.q, heads.k, heads.v,
                             {table.view(), sizes.view(), queries.view(), 640}, {.scale = 0.1f},
                             workspace.view(), stream());
    return y.to(Stream{});
  };
  const Tensor all = attended({0, 1, 2}, {600, 333, 5});
  expect_identical(attended({1}, {333}).slice(1, 1), all.slice(1, 1));
  expect_identical(attended({2, 0}, {5, 600}).slice(0, 1), all.slice(0, 1));
}

// Many parts run with shorter rings than few.
TEST_P(PagedAttentionCudaTest, ARowHasTheSameBitsAmongMany) {
  constexpr int64_t kRows = 600, kHeads = 8, kGroups = 2, kSize = 128, kTokens = 16, kMost = 40;
  const Tensor q =
      random_normal({kRows, 1, kHeads * kSize}, {.seed = 1, .dtype = GetParam()}).to(stream());
  const Shape store = {kMost, kTokens, kGroups, kSize};
  Tensor keys = random_normal(store, {.seed = 2, .dtype = GetParam()}).to(stream());
  Tensor values = random_normal(store, {.seed = 3, .dtype = GetParam()}).to(stream());
  // Rows [first, first + count), which all have the same pages.
  const auto attended = [&](int32_t first, int32_t count) {
    std::vector<int32_t> pages, lengths, queries;
    for (int32_t row = first; row < first + count; ++row) {
      for (int32_t page = 0; page < kMost; ++page) pages.push_back(page * 7 % kMost);
      lengths.push_back(640 - row);
      queries.push_back(row);
    }
    const Tensor table = tensor_of(pages, {count, kMost}).to(stream());
    const Tensor sizes = tensor_of(lengths, {count}).to(stream());
    const Tensor tokens = tensor_of(queries, {count}).to(stream());
    const int64_t bytes =
        kernels::paged_attention_workspace_bytes(count, kHeads, kSize, 640, stream());
    Tensor workspace = zeros({bytes}, DType::kUInt8, stream());
    Tensor y = zeros({kRows, 1, kHeads * kSize}, GetParam(), stream());
    kernels::paged_attention(kernels::heads_of(y.view(), kHeads), keys.view(), values.view(),
                             kernels::heads_of(q.view(), kHeads), {}, {},
                             {table.view(), sizes.view(), tokens.view(), 640}, {.scale = 0.1f},
                             workspace.view(), stream());
    return y.to(Stream{});
  };
  const Tensor all = attended(0, kRows);
  expect_identical(attended(0, 300).slice(0, 300), all.slice(0, 300));
  expect_identical(attended(300, 300).slice(300, 300), all.slice(300, 300));
}

TEST_P(PagedAttentionCudaTest, PutsTokensIntoPages) {
  constexpr int64_t kGroups = 3, kSize = 16;
  const Shape store = {4, 5, kGroups, kSize};
  const std::vector<int32_t> slots = {7, -1, 19, 0};
  expect_twins({random_normal(store, {.seed = 1, .dtype = GetParam()}),
                random_normal(store, {.seed = 2, .dtype = GetParam()}),
                random_normal({4, 1, (6 + 2 * kGroups) * kSize}, {.seed = 3, .dtype = GetParam()}),
                tensor_of(slots, {4})},
               [](std::vector<Tensor>& t, Stream stream) {
                 const auto qkv = kernels::split_qkv(std::as_const(t[2]).view(), 6, kGroups);
                 kernels::put_into_pages(t[0].view(), t[1].view(), qkv.k, qkv.v, t[3].view(),
                                         stream);
               });
}

TEST_P(PagedAttentionCudaTest, RefusesHeadsThatAreNotWholePacks) {
  Tensor store = zeros({1, 4, 1, 6}, GetParam(), stream());
  const Tensor qkv = zeros({1, 1, 18}, GetParam(), stream());
  const auto heads = kernels::split_qkv(std::as_const(qkv).view(), 1, 1);
  const Tensor slots = zeros({1}, DType::kInt32, stream());
  EXPECT_EQ(message_of<Unsupported>([&] {
              kernels::put_into_pages(store.view(), store.view(), heads.k, heads.v, slots.view(),
                                      stream());
            }),
            "attention over pages on a GPU needs heads of 8, 16, .. 256 channels at multiples of "
            "16 bytes; these have 6 channels: use --device cpu");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, PagedAttentionCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
