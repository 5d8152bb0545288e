#include "megatron/kernels/merge_heads.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::ConstHeadsView;
using kernels::heads_of;
using kernels::HeadsView;

class MergeHeadsCudaTest : public CudaTest {};

constexpr int64_t kTokens = 37;
constexpr int64_t kBatch = 2;
constexpr int64_t kBefore = 5;  // log-sum-exps of other queries

Tensor random_heads(int64_t heads, int64_t d, DType dtype, uint64_t seed) {
  return random_normal({kTokens, kBatch, heads * d}, {.seed = seed, .dtype = dtype});
}

// Every mix of dtypes, heads that are whole vectors or not, in aligned memory or not.
TEST_F(MergeHeadsCudaTest, IsItsCpuTwin) {
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType to : dtypes) {
    for (const DType from : dtypes) {
      const DType third = to == DType::kFloat32 ? from : to;
      for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{3, 64}, {5, 7}, {40, 16}}) {
        for (const int64_t misaligned_by : {0, 1}) {
          Tensor lse = random_normal({kBatch, heads, kBefore + kTokens}, {.seed = 3});
          Tensor other_lse = random_normal({kBatch, heads, kTokens}, {.seed = 4});
          const float none = std::numeric_limits<float>::infinity();
          for (size_t i = 0; i < static_cast<size_t>(other_lse.numel()); i += 3) {
            const size_t row = i / kTokens;
            lse.span<float>()[row * (kBefore + kTokens) + kBefore + i % kTokens] = none;
            if (i % 2 == 0) other_lse.span<float>()[i] = none;
          }
          const std::vector<Tensor> tensors = {random_heads(heads, d, to, 1),
                                               random_heads(heads, d, from, 2), lse, other_lse,
                                               random_heads(heads, d, third, 5)};
          // Exponentials of the two devices differ in their last bits.
          Tolerance close = tolerance_of(to);
          close.relative = std::max(close.relative, 2e-6);
          close.absolute = std::max(close.absolute, 2e-6);
          const auto expect_same = [&](const char* what, const auto& run) {
            expect_twins(tensors,
                         [&run, heads = heads](std::vector<Tensor>& t, Stream stream) {
                           run(t, heads_of(t[0].view(), heads),
                               heads_of(std::as_const(t[1]).view(), heads),
                               heads_of(std::as_const(t[4]).view(), heads), stream);
                         },
                         {.tolerance = close, .misaligned_by = misaligned_by, .what = what});
          };
          using Tensors = std::vector<Tensor>;
          using View = ConstHeadsView;
          expect_same("merge", [](Tensors& t, HeadsView dst, View src, View own, Stream stream) {
            kernels::merge_attention(dst, t[2].view(), kBefore, own, src,
                                     std::as_const(t[3]).view(), stream);
          });
          expect_same("merge in place",
                      [](Tensors& t, HeadsView dst, View src, View, Stream stream) {
                        kernels::merge_attention(dst, t[2].view(), kBefore, dst, src,
                                                 std::as_const(t[3]).view(), stream);
                      });
          expect_same("add", [](Tensors&, HeadsView dst, View src, View own, Stream stream) {
            kernels::add_heads(dst, own, src, stream);
          });
          expect_same("add in place", [](Tensors&, HeadsView dst, View src, View, Stream stream) {
            kernels::add_heads(dst, dst, src, stream);
          });
          expect_same("convert", [](Tensors&, HeadsView dst, View src, View, Stream stream) {
            kernels::convert_heads(dst, src, stream);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
