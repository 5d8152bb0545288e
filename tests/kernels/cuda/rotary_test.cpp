#include "megatron/kernels/rotary.h"

#include <cmath>

#include "megatron/kernels/copy_heads.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::RotaryPairs;

using RotaryCudaTest = CudaDtypeTest;

// Fused products on one device leave other roundings where the two products nearly cancel.
Tolerance rotary_tolerance(DType dtype) {
  return dtype == DType::kFloat32 ? Tolerance{.relative = 1e-6, .absolute = 1e-6}
                                  : tolerance_of(dtype);
}

struct RotaryCase {
  int64_t s, b, heads, d, dim;
};
// One token; odd head sizes; part of the channels; whole vectors.
constexpr RotaryCase kRotaryCases[] = {
    {1, 1, 1, 2, 2}, {5, 3, 2, 7, 6}, {9, 2, 3, 64, 32}, {33, 2, 4, 128, 128}};
constexpr int64_t kPositions = 64;

// Cosines and sines of angles that grow with the position.
Tensor table_of(int64_t dim) {
  std::vector<float> table;
  for (int64_t p = 0; p < kPositions; ++p) {
    for (int64_t i = 0; i < dim; ++i) {
      const double angle = 0.3 * static_cast<double>(p) + static_cast<double>(i % (dim / 2));
      table.push_back(static_cast<float>(i < dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  return tensor_of(table, {kPositions, dim});
}

TEST_P(RotaryCudaTest, RotatesInPlace) {
  for (const RotaryCase& c : kRotaryCases) {
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
      for (const bool has_ids : {false, true}) {
        const Tensor x = random_normal({c.s, c.b, c.heads * c.d}, {.seed = 1, .dtype = GetParam()});
        const Tensor ids = has_ids ? random_ids({c.b, c.s}, kPositions, 2) : Tensor();
        expect_twins({x, table_of(c.dim), ids},
                     [&](std::vector<Tensor>& t, Stream stream) {
                       kernels::rotary_inplace(kernels::heads_of(t[0].view(), c.heads), t[1].view(),
                                               has_ids ? ConstView(t[2].view()) : ConstView{}, 3,
                                               pairs, has_ids, stream);
                     },
                     {.tolerance = rotary_tolerance(GetParam())});
      }
    }
  }
}

TEST_P(RotaryCudaTest, RotatesQueriesInsideAFusedProjection) {
  constexpr int64_t kHeads = 8, kGroups = 2, kSize = 32;
  const Tensor x =
      random_normal({17, 2, (kHeads + 2 * kGroups) * kSize}, {.seed = 3, .dtype = GetParam()});
  expect_twins(
      {x, table_of(kSize)},
      [](std::vector<Tensor>& t, Stream stream) {
        const auto qkv = kernels::split_qkv(t[0].view(), kHeads, kGroups);
        kernels::rotary_inplace(qkv.q, t[1].view(), {}, 0, RotaryPairs::kHalves, false, stream);
        kernels::rotary_inplace(qkv.k, t[1].view(), {}, 0, RotaryPairs::kHalves, false, stream);
      },
      {.tolerance = rotary_tolerance(GetParam())});
}

TEST_P(RotaryCudaTest, AnUnknownPositionGivesNotANumber) {
  Tensor x = random_normal({2, 1, 4}, {.seed = 4, .dtype = GetParam()}).to(stream());
  const Tensor ids = tensor_of(std::vector<int64_t>{kPositions, 0}, {1, 2}).to(stream());
  const Tensor table = table_of(4).to(stream());
  kernels::rotary_inplace(kernels::heads_of(x.view(), 1), table.view(), ids.view(), 0,
                          RotaryPairs::kHalves, false, stream());
  const Tensor here = x.to(Stream{});
  EXPECT_TRUE(std::isnan(element(here, 0)));
  EXPECT_FALSE(std::isnan(element(here, 4)));
}

using CopyHeadsCudaTest = CudaDtypeTest;

TEST_P(CopyHeadsCudaTest, CopiesKeysOutOfAFusedProjection) {
  constexpr int64_t kHeads = 4, kGroups = 2;
  for (const int64_t d : {1, 7, 64}) {
    const Tensor qkv =
        random_normal({9, 3, (kHeads + 2 * kGroups) * d}, {.seed = 5, .dtype = GetParam()});
    const Tensor cache = zeros({9, 3, kGroups * d}, GetParam(), Stream{});
    expect_twins({cache, qkv}, [](std::vector<Tensor>& t, Stream stream) {
      kernels::copy_heads(kernels::heads_of(t[0].view(), kGroups),
                          kernels::split_qkv(t[1].view(), kHeads, kGroups).k, stream);
    });
  }
}

// As Retro cuts sequences [s, b, h] into chunks: the chunks are the heads.
TEST_P(CopyHeadsCudaTest, CutsSequencesIntoChunks) {
  constexpr int64_t kChunk = 4, kChunks = 3, kBatch = 2;
  for (const int64_t h : {3, 1024}) {
    const Tensor x = random_normal({kChunks * kChunk, kBatch, h}, {.seed = 6, .dtype = GetParam()});
    const Tensor y = zeros({kChunk, kBatch * kChunks, h}, GetParam(), Stream{});
    expect_twins({y, x}, [h](std::vector<Tensor>& t, Stream stream) {
      kernels::HeadsView to = kernels::heads_of(t[0].view(), 1);
      to.b = kBatch;
      to.heads = kChunks;
      to.stride_b = kChunks * h;
      to.stride_group = h;
      kernels::HeadsView from = kernels::heads_of(t[1].view(), 1);
      from.s = kChunk;
      from.heads = kChunks;
      from.stride_group = kChunk * kBatch * h;
      kernels::copy_heads(to, from, stream);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RotaryCudaTest, kTrainingDtypes, dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, CopyHeadsCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
