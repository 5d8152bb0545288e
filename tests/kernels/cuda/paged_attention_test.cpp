#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <tuple>
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

struct PagedAttentionCase {
  int64_t heads, groups, d, page_tokens;
  std::vector<int32_t> lengths;
};
// One key; parts of 128 keys, and of 512, and one key more; many parts; padding; groups of up to 8
// heads, of up to 16 and of more; wide heads.
const PagedAttentionCase kPagedAttentionCases[] = {{1, 1, 8, 16, {1}},
                                                   {4, 4, 64, 16, {128, 129, 1, 300}},
                                                   {3, 1, 40, 3, {5, 0, 70, 0}},
                                                   {8, 2, 128, 16, {1000, 17, 640}},
                                                   {12, 2, 64, 32, {257, 256}},
                                                   {6, 3, 256, 16, {150, 2}},
                                                   {8, 1, 64, 16, {512, 513, 1025}},
                                                   {24, 2, 128, 16, {512, 513, 1100}},
                                                   {20, 1, 64, 16, {1030, 90}},
                                                   {6, 2, 96, 16, {33, 700}},
                                                   {4, 4, 48, 8, {100, 0, 515}}};

// Keys or values of cases with pages in FP8, and their scales.
bool can_be_fp8(DType dtype, int64_t d) {
  return kernels::has_fp8_pages(dtype, d, {DeviceType::kCuda, 0});
}
struct Fp8Store {
  Tensor keys, values, scales;
};
Fp8Store fp8_store(const Shape& shape) {
  const int64_t rows = shape[0] * shape[1] * shape[2];
  Fp8Store store{Tensor(shape, DType::kFloat8E4M3, Stream{}),
                 Tensor(shape, DType::kFloat8E4M3, Stream{}),
                 Tensor({shape[0], shape[1], shape[2], 2}, DType::kFloat32, Stream{})};
  const Tensor k = random_normal({rows, 1, shape[3]}, {.seed = 1});
  const Tensor v = random_normal({rows, 1, shape[3]}, {.seed = 2, .stddev = 0.01f});
  std::vector<int32_t> slots;  // each head a token of one head
  for (int32_t i = 0; i < rows; ++i) slots.push_back(i);
  const Shape flat = {rows, 1, 1, shape[3]};
  kernels::put_into_pages({store.keys.reshape(flat).view(), store.values.reshape(flat).view(),
                           store.scales.reshape({rows, 1, 1, 2}).view()},
                          kernels::heads_of(k.view(), 1), kernels::heads_of(v.view(), 1),
                          {slots.data(), {rows}, DType::kInt32}, Stream{});
  return store;
}

// Each row has pages of its own, in mixed order.
Tensor pages_of(const PagedAttentionCase& c, int64_t most) {
  std::vector<int32_t> pages;
  const auto rows = static_cast<int64_t>(c.lengths.size());
  for (int64_t i = 0; i < rows * most; ++i) {
    pages.push_back(static_cast<int32_t>(i % most * rows + i / most));
  }
  return tensor_of(pages, {rows, most});
}

// Without a window, cap and sinks, and with them.
class PagedWindowCudaTest : public PagedAttentionCudaTest {
 protected:
  void check(int64_t window) const;
};

TEST_P(PagedWindowCudaTest, AttendsToPages) { check(0); }
TEST_P(PagedWindowCudaTest, AttendsToAWindowWithACapAndSinks) {
  for (const int64_t window : {1, 90, 513, 5000}) check(window);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, PagedWindowCudaTest, kTrainingDtypes, dtype_name);

void PagedWindowCudaTest::check(int64_t window) const {
  for (const PagedAttentionCase& c : kPagedAttentionCases) {
    for (const auto& [has_bias, has_new_tokens, is_fp8] : {std::tuple{false, true, false},
                                                           {true, true, false},
                                                           {false, false, false},
                                                           {true, false, false},
                                                           {false, true, true},
                                                           {true, false, true}}) {
      if (is_fp8 && !can_be_fp8(GetParam(), c.d)) continue;
      const auto rows = static_cast<int64_t>(c.lengths.size());
      const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
      const int64_t most = (longest + c.page_tokens - 1) / c.page_tokens;
      const Shape store = {rows * most, c.page_tokens, c.groups, c.d};
      const int64_t tokens = rows + 2;
      std::vector<int32_t> queries;  // not in order
      for (int32_t i = 0; i < rows; ++i) queries.push_back(static_cast<int32_t>(rows) - i);
      const DType dtype = GetParam();
      Fp8Store pages{random_normal(store, {.seed = 1, .dtype = dtype}),
                     random_normal(store, {.seed = 2, .dtype = dtype}), Tensor()};
      if (is_fp8) pages = fp8_store(store);
      const std::vector<Tensor> tensors = {
          zeros({tokens, 1, c.heads * c.d}, dtype, Stream{}),
          pages.keys,
          pages.values,
          random_normal({tokens, 1, (c.heads + 2 * c.groups) * c.d}, {.seed = 3, .dtype = dtype}),
          pages_of(c, most),
          tensor_of(c.lengths, {rows}),
          tensor_of(queries, {rows}),
          random_normal({c.heads}, {.seed = 4, .stddev = 0.01f}),
          random_normal({c.heads, 40}, {.seed = 5}),
          pages.scales,
          random_normal({c.heads}, {.seed = 6})};
      expect_twins(tensors,
                   [&, with_bias = has_bias, with_new_tokens = has_new_tokens, fp8 = is_fp8](
                       std::vector<Tensor>& t, Stream stream) {
                     auto qkv = kernels::split_qkv(std::as_const(t[3]).view(), c.heads, c.groups);
                     if (!with_new_tokens) qkv.k = qkv.v = {};
                     kernels::PagedSettings settings{.scale = 0.2f};
                     if (with_bias) {
                       settings.alibi_slopes = t[7].view();
                       settings.distance_bias = t[8].view();
                     }
                     if (window > 0) {
                       settings.window = window;
                       settings.logit_cap = 1.5f;
                       settings.sinks = t[10].view();
                     }
                     // Graphs are made for rounded lengths.
                     const int64_t max_length = longest + 200;
                     const int64_t bytes = kernels::paged_attention_workspace_bytes(
                         rows, c.heads, c.d, max_length, stream);
                     Tensor workspace = zeros({std::max<int64_t>(bytes, 1)}, DType::kUInt8, stream);
                     // A second call finds the counters as the first one did.
                     for (int call = 0; call < 2; ++call) {
                       kernels::paged_attention(
                           kernels::heads_of(t[0].view(), c.heads),
                           {t[1].view(), t[2].view(), fp8 ? t[9].view() : TensorView{}}, qkv.q,
                           qkv.k, qkv.v, {t[4].view(), t[5].view(), t[6].view(), max_length},
                           settings, workspace.view(), stream);
                     }
                   },
                   {.tolerance = tolerance(),
                    .what = std::to_string(c.heads) + " heads of " + std::to_string(c.d) +
                            (is_fp8 ? " in FP8" : "")});
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
    kernels::paged_attention(kernels::heads_of(y.view(), kHeads), {keys.view(), values.view()},
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
    kernels::paged_attention(kernels::heads_of(y.view(), kHeads), {keys.view(), values.view()},
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
  expect_twins(
      {random_normal(store, {.seed = 1, .dtype = GetParam()}),
       random_normal(store, {.seed = 2, .dtype = GetParam()}),
       random_normal({4, 1, (6 + 2 * kGroups) * kSize}, {.seed = 3, .dtype = GetParam()}),
       tensor_of(slots, {4})},
      [](std::vector<Tensor>& t, Stream stream) {
        const auto qkv = kernels::split_qkv(std::as_const(t[2]).view(), 6, kGroups);
        kernels::put_into_pages({t[0].view(), t[1].view()}, qkv.k, qkv.v, t[3].view(), stream);
      });
}

// fp32 is refused, as the last test shows.
class PagedFp8CudaTest : public PagedAttentionCudaTest {};

TEST_P(PagedFp8CudaTest, PutsTokensIntoPages) {
  for (const int64_t size : {16, 80, 128}) {
    constexpr int64_t kGroups = 11;
    const Fp8Store store = fp8_store({4, 5, kGroups, size});
    const std::vector<int32_t> slots = {7, -1, 19, 0};
    // A row of zeros and one with NaN, too.
    Tensor qkv = random_normal({4, 1, 3 * kGroups * size}, {.seed = 3, .dtype = GetParam()});
    Tensor zero = qkv.reshape({4 * 3 * kGroups, size}).slice(1, 1);
    copy_into(zero, zeros({1, size}, GetParam(), Stream{}));
    Tensor nan = qkv.reshape({12 * kGroups, size}).slice(2, 1).reshape({size}).slice(3, 1);
    copy_into(nan, full({1}, std::nanf(""), GetParam(), Stream{}));
    expect_twins({store.keys, store.values, store.scales, qkv, tensor_of(slots, {4})},
                 [](std::vector<Tensor>& t, Stream stream) {
                   const auto heads =
                       kernels::split_qkv(std::as_const(t[3]).view(), kGroups, kGroups);
                   kernels::put_into_pages({t[0].view(), t[1].view(), t[2].view()}, heads.k,
                                           heads.v, t[4].view(), stream);
                 },
                 {.tolerance = Tolerance{0, 0}});
  }
}

// One large channel makes the numbers of the others in FP8 less than the smallest normal one.
// Queries do not see it, so that scores are of small numbers alone.
TEST_P(PagedFp8CudaTest, ReadsTheSmallestNumbers) {
  constexpr int64_t kKeys = 40, kSize = 32;
  const auto tokens = [](uint64_t seed) {
    Tensor x = random_normal({kKeys, 1, kSize}, {.seed = seed, .stddev = 0x1p-8f});
    for (int64_t i = 0; i < kKeys; ++i) x.span<float>()[static_cast<size_t>(i * kSize)] = 448;
    return x;
  };
  const Tensor k = tokens(1);
  const Tensor v = tokens(2);
  Tensor q = random_normal({1, 1, kSize}, {.seed = 3, .stddev = 60});
  q.span<float>()[0] = 0;
  std::vector<int32_t> slots;
  for (int32_t i = 0; i < kKeys; ++i) slots.push_back(i);
  const Shape shape = {kKeys, 1, 1, kSize};
  Tensor keys(shape, DType::kFloat8E4M3, Stream{});
  Tensor values(shape, DType::kFloat8E4M3, Stream{});
  Tensor scales({kKeys, 1, 1, 2}, DType::kFloat32, Stream{});
  kernels::put_into_pages({keys.view(), values.view(), scales.view()},
                          kernels::heads_of(k.view(), 1), kernels::heads_of(v.view(), 1),
                          {slots.data(), {kKeys}, DType::kInt32}, Stream{});
  expect_twins({zeros({1, 1, kSize}, GetParam(), Stream{}), cast(q, GetParam()), keys, values,
                scales, tensor_of(slots, {1, kKeys}), tensor_of(std::vector<int32_t>{kKeys}, {1}),
                tensor_of(std::vector<int32_t>{0}, {1})},
               [&](std::vector<Tensor>& t, Stream stream) {
                 Tensor workspace = zeros({4096}, DType::kUInt8, stream);
                 kernels::paged_attention(kernels::heads_of(t[0].view(), 1),
                                          {t[2].view(), t[3].view(), t[4].view()},
                                          kernels::heads_of(std::as_const(t[1]).view(), 1), {}, {},
                                          {t[5].view(), t[6].view(), t[7].view(), kKeys},
                                          {.scale = 1}, workspace.view(), stream);
               },
               {.tolerance = Tolerance{.relative = 0x1p-7, .absolute = 0x1p-14}});
}

TEST_P(PagedAttentionCudaTest, TakesTokensFromPages) {
  constexpr int64_t kGroups = 3;
  for (const int64_t size : {16, 80, 128}) {
    const Shape shape = {6, 4, kGroups, size};
    const std::vector<int32_t> pages = {5, 0, 3};
    for (const bool is_fp8 : {false, true}) {
      if (is_fp8 && !can_be_fp8(GetParam(), size)) continue;
      Fp8Store store{random_normal(shape, {.seed = 1, .dtype = GetParam()}),
                     random_normal(shape, {.seed = 2, .dtype = GetParam()}), Tensor()};
      if (is_fp8) store = fp8_store(shape);
      const Tensor taken = zeros({10, 1, kGroups * size}, GetParam(), Stream{});
      expect_twins(
          {taken, copied(taken), store.keys, store.values, tensor_of(pages, {3}), store.scales},
          [&](std::vector<Tensor>& t, Stream stream) {
            kernels::take_from_pages(
                kernels::heads_of(t[0].view(), kGroups), kernels::heads_of(t[1].view(), kGroups),
                {t[2].view(), t[3].view(), is_fp8 ? t[5].view() : TensorView{}},
                std::as_const(t[4]).view(), stream);
          },
          {.tolerance = Tolerance{0, 0}});
    }
  }
}

TEST_P(PagedAttentionCudaTest, RefusesPagesInFp8ThatNoKernelReads) {
  const int64_t size = GetParam() == DType::kFloat32 ? 64 : 256;
  Tensor store = zeros({1, 4, 1, size}, DType::kUInt8, stream());
  TensorView numbers = store.view();
  numbers.dtype = DType::kFloat8E4M3;
  Tensor scales = zeros({1, 4, 1, 2}, DType::kFloat32, stream());
  const Tensor qkv = zeros({1, 1, 3 * size}, GetParam(), stream());
  const auto heads = kernels::split_qkv(std::as_const(qkv).view(), 1, 1);
  const Tensor slots = zeros({1}, DType::kInt32, stream());
  EXPECT_EQ(message_of<Unsupported>([&] {
              kernels::put_into_pages({numbers, numbers, scales.view()}, heads.k, heads.v,
                                      slots.view(), stream());
            }),
            "keys and values in FP8 on a GPU need a model in 16 bits with heads of 16, 32, .. 128 "
            "channels; these have " +
                std::to_string(size) + " in " + std::string(name_of(GetParam())));
}

TEST_P(PagedAttentionCudaTest, RefusesHeadsThatAreNotWholePacks) {
  Tensor store = zeros({1, 4, 1, 6}, GetParam(), stream());
  const Tensor qkv = zeros({1, 1, 18}, GetParam(), stream());
  const auto heads = kernels::split_qkv(std::as_const(qkv).view(), 1, 1);
  const Tensor slots = zeros({1}, DType::kInt32, stream());
  EXPECT_EQ(message_of<Unsupported>([&] {
              kernels::put_into_pages({store.view(), store.view()}, heads.k, heads.v, slots.view(),
                                      stream());
            }),
            "attention over pages on a GPU needs heads of 8, 16, .. 256 channels at multiples of "
            "16 bytes; these have 6 channels: use --device cpu");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, PagedAttentionCudaTest, kTrainingDtypes, dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, PagedFp8CudaTest,
                         testing::Values(DType::kFloat16, DType::kBFloat16), dtype_name);

}  // namespace
}  // namespace megatron
