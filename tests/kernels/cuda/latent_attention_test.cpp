#include "megatron/kernels/latent_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

struct LatentCase {
  int64_t heads, latent, rotated, page_tokens;
  std::vector<int32_t> lengths;
};
// One head and one key; the heads of DeepSeek-V2-Lite; odd sizes; the largest ones; rows without a
// text.
const LatentCase kLatentCases[] = {{1, 8, 2, 16, {1}},
                                   {16, 512, 64, 16, {700, 1, 33}},
                                   {5, 21, 6, 3, {40, 0, 7, 8, 0}},
                                   {6, 512, 256, 16, {130}},
                                   {8, 40, 12, 5, {9, 300}}};

class LatentAttentionCudaTest : public CudaDtypeTest {
 protected:
  // fp32: sums of up to 768 products, of exponentials and of 700 latents in another order.
  static Tolerance tolerance() {
    if (GetParam() == DType::kFloat32) return {.relative = 1e-4, .absolute = 5e-5};
    return tolerance_of(GetParam());
  }
};

// Puts tokens into pages, attends to them, and takes them again.
TEST_P(LatentAttentionCudaTest, PutsAttendsAndTakes) {
  for (const LatentCase& c : kLatentCases) {
    for (const bool is_fp8 : {false, true}) {
      for (const int64_t window : {0, 20}) {
        const auto rows = static_cast<int64_t>(c.lengths.size());
        const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
        const int64_t most = (longest + c.page_tokens - 1) / c.page_tokens;
        const int64_t slots = rows * most * c.page_tokens;
        std::vector<int32_t> pages, queries, to;
        for (int64_t i = 0; i < rows * most; ++i) {
          pages.push_back(static_cast<int32_t>(i % most * rows + i / most));
        }
        for (int64_t i = 0; i < rows; ++i) queries.push_back(static_cast<int32_t>(rows - i));
        for (int64_t i = 0; i < slots; ++i) to.push_back(static_cast<int32_t>(slots - 1 - i));
        const DType dtype = GetParam();
        const DType stored = is_fp8 ? DType::kFloat8E4M3 : dtype;
        const auto store = [&](int64_t channels, DType of_store) {
          return zeros({rows * most, c.page_tokens, 1, channels}, of_store, Stream{});
        };
        const std::vector<Tensor> tensors = {
            zeros({rows + 2, 1, c.heads * c.latent}, dtype, Stream{}),
            store(c.rotated, stored),
            store(c.latent, stored),
            is_fp8 ? store(2, DType::kFloat32) : Tensor(),
            random_normal({slots, 1, c.rotated}, {.seed = 1, .dtype = dtype}),
            random_normal({slots, 1, c.latent}, {.seed = 2, .dtype = dtype}),
            tensor_of(to, {slots}),
            random_normal({rows + 2, 1, c.heads * c.latent}, {.seed = 3, .dtype = dtype}),
            random_normal({rows + 2, 1, c.heads * c.rotated}, {.seed = 4, .dtype = dtype}),
            tensor_of(pages, {rows, most}),
            tensor_of(c.lengths, {rows}),
            tensor_of(queries, {rows}),
            random_normal({c.heads}, {.seed = 6}),
            zeros({c.lengths[0], 1, c.rotated}, dtype, Stream{}),
            zeros({c.lengths[0], 1, c.latent}, dtype, Stream{}),
            tensor_of(std::vector<int32_t>(static_cast<size_t>(rows + 2), 7), {rows + 2})};
        expect_twins(
            tensors,
            [&, fp8 = is_fp8](std::vector<Tensor>& t, Stream stream) {
              const kernels::KeyValuePages in_pages{t[1].view(), t[2].view(),
                                                    fp8 ? t[3].view() : TensorView{}};
              const auto one = [&](size_t i) {
                return kernels::heads_of(std::as_const(t[i]).view(), 1);
              };
              const auto all = [&](size_t i) {
                return kernels::heads_of(std::as_const(t[i]).view(), c.heads);
              };
              kernels::put_latents(in_pages, one(4), one(5), t[6].view(), stream);
              kernels::PagedSettings settings{.scale = 0.1f, .window = window};
              if (window > 0) {
                settings.logit_cap = 1.5f;
                settings.sinks = t[12].view();
              }
              const kernels::PageTable table{t[9].view(), t[10].view(), t[11].view(), longest};
              kernels::latent_attention(kernels::heads_of(t[0].view(), c.heads), in_pages, all(7),
                                        all(8), table, settings, stream);
              kernels::take_latents(kernels::heads_of(t[13].view(), 1),
                                    kernels::heads_of(t[14].view(), 1), in_pages,
                                    std::as_const(t[9]).slice(0, 1).reshape({most}).view(), stream);
              kernels::new_token_slots(t[15].view(), table, c.page_tokens, stream);
            },
            {.tolerance = tolerance(), .what = is_fp8 ? "in FP8" : ""});
      }
    }
  }
}

TEST_P(LatentAttentionCudaTest, MultipliesHeads) {
  constexpr int64_t kManyHeads = 3, kHeadRows = 70, kColumns = 90, kFirst = 7, kCount = 50;
  for (const DType stored : {GetParam(), DType::kInt8}) {
    for (const int64_t tokens : {1, 8, 13}) {
      const bool is_rounded = stored == DType::kInt8;
      const Tensor w = random_normal({kManyHeads, kHeadRows, kColumns},
                                     {.seed = 1, .stddev = is_rounded ? 40.0f : 1.0f});
      Tensor numbers = is_rounded ? Tensor(w.shape(), stored, Stream{}) : cast(w, stored);
      for (int64_t i = 0; is_rounded && i < w.numel(); ++i) {
        numbers.span<int8_t>()[static_cast<size_t>(i)] =
            static_cast<int8_t>(std::clamp(element(w, i), -127.0, 127.0));
      }
      const std::vector<Tensor> tensors = {
          zeros({kManyHeads, tokens, kColumns}, GetParam(), Stream{}),
          zeros({kManyHeads, tokens, kCount}, GetParam(), Stream{}),
          random_normal({kManyHeads, tokens, kCount}, {.seed = 2, .dtype = GetParam()}),
          random_normal({kManyHeads, tokens, kColumns}, {.seed = 3, .dtype = GetParam()}),
          numbers,
          is_rounded ? full({kManyHeads, kHeadRows}, 0x1p-5f, DType::kFloat32, Stream{})
                     : Tensor()};
      expect_twins(tensors,
                   [&](std::vector<Tensor>& t, Stream stream) {
                     const ConstView scales =
                         t[5].defined() ? std::as_const(t[5]).view() : ConstView{};
                     kernels::multiply_heads(t[0].view(), std::as_const(t[2]).view(),
                                             std::as_const(t[4]).view(), scales, kFirst,
                                             kernels::Transpose::kNo, stream);
                     kernels::multiply_heads(t[1].view(), std::as_const(t[3]).view(),
                                             std::as_const(t[4]).view(), scales, kFirst,
                                             kernels::Transpose::kYes, stream);
                   },
                   {.tolerance = tolerance()});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LatentAttentionCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
