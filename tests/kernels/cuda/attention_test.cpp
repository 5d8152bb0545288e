#include "tests/kernels/cuda/attention_problem.h"

#include <array>
#include <utility>
#include <vector>

// Sizes, heads and parts of sequences.
namespace megatron::attention_tests {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;

TEST_F(AttentionCudaTest, SizesAroundTiles) {
  for (const int64_t s : {1, 2, 31, 32, 33, 64, 65, 130}) {
    for (const bool is_causal : {false, true}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        Problem p = self_attention("s", s, 1, 2, 2, 8, is_causal);
        p.dtype = dtype;
        check(p);
      }
    }
  }
}

TEST_F(AttentionCudaTest, HeadSizes) {
  for (const int64_t d : {1, 3, 16, 31, 33, 64, 80, 100, 128, 129, 256}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Problem p = self_attention("d", 37, 2, 1, 1, d);
      p.dtype = dtype;
      check(p);
    }
  }
}

TEST_F(AttentionCudaTest, GroupedAndMultiQuery) {
  for (const int64_t groups : {1, 2, 6}) {
    check(self_attention("groups", 70, 2, 6, groups, 16));
    Problem separate = self_attention("separate", 70, 2, 6, groups, 16);
    separate.is_fused = false;
    check(separate);
  }
}

TEST_F(AttentionCudaTest, CrossAttention) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p{.name = "short on long",
              .sq = 5,
              .sk = 131,
              .b = 2,
              .heads = 2,
              .groups = 2,
              .d = 24,
              .is_fused = false,
              .dtype = dtype};
    check(p);
    p.name = "long on short";
    std::swap(p.sq, p.sk);
    check(p);
  }
}

// Retro's neighbours read the chunk that they were retrieved for.
TEST_F(AttentionCudaTest, SequencesOfQueriesShareTheirKeys) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const float dropout : {0.0f, 0.2f}) {
      check({.name = "shared keys",
             .sq = 128,
             .sk = 64,
             .b = 3,
             .heads = 2 * 4,
             .groups = 4,
             .d = 64,
             .is_fused = false,
             .dtype = dtype,
             .dropout = {.key = 5, .first_sample = 2, .probability = dropout, .parts_of_sample = 3},
             .shares_keys = true});
    }
  }
}

TEST_F(AttentionCudaTest, QueriesAfterACache) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p{.name = "one token",
              .sq = 1,
              .sk = 100,
              .b = 2,
              .heads = 4,
              .groups = 2,
              .d = 16,
              .is_causal = true,
              .query_offset = 99,
              .is_fused = false,
              .dtype = dtype};
    check(p);
    p.name = "chunk";
    p.sq = 60;
    p.sk = 128;
    p.query_offset = 68;
    check(p);
  }
}

// A chunk of a sequence that is spread over ranks: its queries see all keys up to their own.
TEST_F(AttentionCudaTest, ChunksOfASequence) {
  for (const int64_t chunk : {1, 2, 4}) {
    for (const auto& [heads, groups] : {std::pair{4, 4}, std::pair{4, 2}}) {
      Problem p{.name = "chunk",
                .sq = 128,
                .sk = chunk * 128,
                .b = 1,
                .heads = heads,
                .groups = groups,
                .d = 64,
                .is_causal = true,
                .query_offset = (chunk - 1) * 128,
                .is_fused = false};
      check_cudnn(p);
      p.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
      p.dropout_length = 1'024;
      p.dtype = DType::kBFloat16;
      check(p);
    }
  }
}

// A chunk's queries on a block of keys before it: some queries see a part of it, and some nothing.
// Dropout takes blocks that begin at a multiple of 32 to tensor cores.
TEST_F(AttentionCudaTest, BlocksOfKeys) {
  constexpr int64_t kQueries = 140;
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < kQueries; ++i) {
      starts.push_back(i < 20 ? 0 : i < 40 ? 300 + batch : i < 75 ? 420 : 600);
    }
  }
  for (const int64_t key_offset : {128, 224, 231}) {
    for (const int64_t d : {64, 96, 128}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        Problem p{.name = "block",
                  .sq = kQueries,
                  .sk = 200,
                  .b = 2,
                  .heads = 4,
                  .groups = 2,
                  .d = d,
                  .query_offset = 640,
                  .key_offset = key_offset,
                  .is_fused = false,
                  .dtype = dtype};
        check(p);
        p.name = "biased block";
        p.alibi_slopes = tensor_of(std::vector<float>{0.05f, 0.02f, 0.01f, 0.0f}, {4});
        check(p);
        p.name = "block of documents";
        p.document_starts = tensor_of(starts, {2, kQueries});
        check(p);
        p.name = "dropped block of documents";
        p.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
        p.dropout_length = 1'024;
        check(p);
        p.name = "own block";  // dropped, of documents and causal
        p.query_offset = key_offset;
        p.is_causal = true;
        p.sk = kQueries;
        check(p);
      }
    }
  }
}

// Without the log-sum-exp, as generation calls it.
TEST_F(AttentionCudaTest, WithoutLogSumExp) {
  Problem p = self_attention("no lse", 65, 2, 4, 2, 64);
  p.dtype = DType::kBFloat16;
  const Buffers want = run(p, Stream{}, Path::kChosen);
  Buffers t = buffers_of(p, stream());
  const OnDevice on_device(p, stream());
  const auto [q, k, v] = qkv_of<ConstHeadsView, const Tensor>(p, t.q, t.k, t.v);
  const HeadsView out = queries_of<HeadsView>(p, t.out);
  EXPECT_EQ(
      kernels::attention_forward_workspace_bytes(out, {}, q, k, v, on_device.settings, stream()),
      0);
  kernels::attention_forward(out, {}, q, k, v, on_device.settings, {}, stream());
  expect_close(t.out.to(Stream{}), want.out, on_tensor_cores(p.dtype), text_of(p));
}

TEST_F(AttentionCudaTest, LargeScoresDoNotOverflow) {
  Problem p = self_attention("large", 65, 1, 2, 2, 64);
  p.scale = 20;
  const Buffers got = run(p, stream(), Path::kMath);
  const Buffers want = run(p, Stream{}, Path::kChosen);
  // Scores around 100 have an error of 1e-5, and gradients the scale as a factor.
  expect_close(got.out, want.out, Tolerance{.relative = 1e-3, .absolute = 1e-3}, "large: out");
  expect_close(got.dq, want.dq, Tolerance{.relative = 1e-2, .absolute = 1e-2}, "large: dqkv");
}

TEST_F(AttentionCudaTest, EmptyExtents) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p{.name = "no samples", .sq = 4, .sk = 4, .b = 0, .heads = 2, .groups = 2, .d = 8};
    p.dtype = dtype;
    p.is_fused = false;
    check(p);
    p.name = "no queries";
    p.b = 1;
    p.sq = 0;
    check(p);
    p.name = "no keys";
    p.sq = 4;
    p.sk = 0;
    check(p);
  }
}

}  // namespace
}  // namespace megatron::attention_tests
