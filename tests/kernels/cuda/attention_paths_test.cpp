#include "tests/kernels/cuda/attention_problem.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/cudnn_attention.h"
#include "tests/support/temporary_directory.h"

// The choice of kernels, and their common properties.
namespace megatron::attention_tests {
namespace {

TEST_F(AttentionCudaTest, CudnnServesTraining) {
  if (!kernels::cuda::has_cudnn_attention()) {
    GTEST_SKIP() << "built without the headers of cudnn-frontend: not run";
  }
  check_cudnn(self_attention("heads of 64", 256, 2, 4, 4, 64));
  check_cudnn(self_attention("heads of 128", 192, 2, 2, 2, 128));
  check_cudnn(self_attention("heads of 80", 128, 2, 2, 2, 80));
  check_cudnn(self_attention("odd length", 201, 2, 3, 3, 64));
  check_cudnn(self_attention("everything visible", 130, 2, 2, 2, 64, false));
  check_cudnn(self_attention("multi-query", 130, 2, 4, 1, 64));
  check_cudnn(self_attention("grouped, one projection", 130, 3, 6, 2, 64));
  Problem separate = self_attention("grouped, separate", 130, 3, 6, 2, 64);
  separate.is_fused = false;
  check_cudnn(separate);
  Problem deterministic = self_attention("deterministic", 200, 2, 4, 2, 64);
  deterministic.is_deterministic = true;
  check_cudnn(deterministic);
}

// The plan that a search finds replaces cuDNN's first offer, which is the fastest for the second
// problem. The search runs the call several times.
TEST_F(AttentionCudaTest, SearchedPlansOfCudnnGiveTheSameBitsEveryTime) {
  if (!kernels::cuda::has_cudnn_attention()) {
    GTEST_SKIP() << "built without the headers of cudnn-frontend: not run";
  }
  const TemporaryDirectory directory;
  ::setenv("MEGATRON_MATMUL_CACHE", (directory.path() / "choices.txt").c_str(), 0);
  for (Problem p : {self_attention("large", 1024, 4, 16, 16, 64),
                    self_attention("large heads", 2048, 2, 16, 16, 128)}) {
    p.dtype = DType::kBFloat16;
    ASSERT_TRUE(is_served_by_cudnn(p)) << text_of(p) << ": see the warning above for why not";
    const Buffers want = run(p, stream(), Path::kChosen);
    Stream searching = stream();
    searching.options.searches_algorithms = true;
    const Buffers first = run(p, searching, Path::kChosen);
    expect_results(p, first, want, "a search");
    for (const Stream by : {searching, stream()}) {
      const Buffers again = run(p, by, Path::kChosen);
      expect_identical(again.out, first.out);
      expect_identical(again.lse, first.lse);
      expect_results(p, again, want, "the plan that was found");
    }
  }
}

// Dropout, documents and ALiBi go to own kernels, on tensor cores in 16 bits: several tiles of
// queries and keys, few heads to a group, heads of up to 128 channels.
TEST_F(AttentionCudaTest, TensorCoresServeTheRest) {
  std::vector<int32_t> starts;
  for (int sample = 0; sample < 2; ++sample) {
    for (int i = 0; i < 210; ++i) starts.push_back(i / (37 + 40 * sample) * (37 + 40 * sample));
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t d : {24, 64, 80, 101, 128}) {
      Problem p = self_attention("dropout", 210, 2, 4, 2, d);
      p.dtype = dtype;
      p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.2f};
      p.first_head = 8;
      EXPECT_FALSE(is_served_by_cudnn(p));
      check(p);
      p.name = "documents, dropout";
      p.document_starts = tensor_of(starts, {2, 210});
      check(p);
      p.name = "documents";
      p.dropout = {};
      check(p);
      p.name = "documents, ALiBi";
      p.alibi_slopes = tensor_of(std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f}, {4});
      check(p);
    }
  }
}

// Sizes as in training, against the own kernels without tensor cores: every block of a full GPU,
// and dq from many tiles of keys.
TEST_F(AttentionCudaTest, TensorCoresServeTraining) {
  for (const auto& [s, heads, groups, d] :
       {std::array<int64_t, 4>{1024, 16, 16, 64}, std::array<int64_t, 4>{2048, 8, 2, 128}}) {
    for (const float probability : {0.0f, 0.1f}) {
      Problem p = self_attention("training", s, 3, heads, groups, d);
      p.dtype = DType::kBFloat16;
      p.document_starts = zeros({3, s}, DType::kInt32, Stream{});
      p.dropout = {.key = 1, .first_sample = 7, .probability = probability};
      EXPECT_FALSE(is_served_by_cudnn(p));
      const auto compare = [&] {
        expect_results(p, run(p, stream(), Path::kChosen), run(p, stream(), Path::kMath),
                       "tensor cores against plain kernels", 2);
      };
      compare();
      p.name = "training with prefixes";
      p.prefix_ends = prefixes({1, 700, static_cast<int32_t>(s)}, s);
      compare();
      p.name = "training with a relative bias";
      p.prefix_ends = p.document_starts = Tensor();
      p.is_causal = false;
      p.relative_bias = random_normal({heads, 2 * s - 1}, {.seed = 3});
      compare();
    }
  }
}

TEST_F(AttentionCudaTest, DeterministicGradientsHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const float probability : {0.0f, 0.1f}) {
      Problem p = self_attention("deterministic", 512, 2, 8, 2, 64);
      p.dtype = dtype;
      p.is_deterministic = true;
      p.dropout = {.key = 1, .probability = probability};
      const auto repeat = [&] {
        const Buffers first = run(p, stream(), Path::kChosen);
        for (int i = 0; i < 4; ++i) {
          const Buffers again = run(p, stream(), Path::kChosen);
          expect_identical(again.out, first.out, text_of(p) + ": out");
          expect_identical(again.dq, first.dq, text_of(p) + ": dqkv");
        }
      };
      repeat();
      p.prefix_ends = prefixes({100, 300}, 512);
      repeat();
    }
  }
}

// A query that sees a NaN has a NaN for every result, also where the key that holds it is the only
// one the query sees, so that a single lane of a warp has a score. Other queries keep their bits.
TEST_F(AttentionCudaTest, NanReachesWhoSeesIt) {
  constexpr int kNanKey = 40;
  constexpr int kLength = 70;
  std::vector<int32_t> only_it;  // its own query sees nothing else, and no later query sees it
  for (int i = 0; i < kLength; ++i) {
    only_it.push_back(i < kNanKey ? 0 : i == kNanKey ? kNanKey : kNanKey + 1);
  }
  const std::vector<int32_t> all_before(kLength, 0);
  for (const std::vector<int32_t>& starts : {only_it, all_before}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const float probability : {0.0f, 0.5f}) {
        for (const auto& [path, d] : {std::pair{Path::kMath, 16},
                                      {Path::kChosen, 16},
                                      {Path::kChosen, 64},
                                      {Path::kChosen, 128}}) {
          Problem p = self_attention("NaN", kLength, 1, 2, 2, d);
          p.is_fused = false;
          p.dtype = dtype;
          p.document_starts = tensor_of(starts, {1, kLength});
          p.dropout = {.key = 3, .probability = probability};
          EXPECT_FALSE(is_served_by_cudnn(p));
          const Buffers clean = run(p, stream(), path);
          p.nan_key = kNanKey;
          const Buffers got = run(p, stream(), path);
          const std::string what = text_of(p) + (path == Path::kMath ? " plain" : " chosen");
          const int64_t width = p.heads * p.d;
          for (int64_t query = 0; query < kLength; ++query) {
            const bool sees_it = query >= kNanKey && starts[static_cast<size_t>(query)] <= kNanKey;
            const auto expect = [&](const Tensor& x, const Tensor& of_clean, int64_t i,
                                    const char* name) {
              const double value = element(x, i);
              if (sees_it) {
                ASSERT_TRUE(std::isnan(value)) << what << ": " << name << " of query " << query;
              } else {
                ASSERT_EQ(value, element(of_clean, i))
                    << what << ": " << name << " of query " << query;
              }
            };
            for (int64_t c = 0; c < width; ++c)
              expect(got.out, clean.out, query * width + c, "out");
            for (int64_t head = 0; head < p.heads; ++head) {
              expect(got.lse, clean.lse, head * kLength + query, "lse");
            }
            for (int64_t c = 0; sees_it && c < width; ++c) {
              expect(got.dq, clean.dq, query * width + c, "dq");
            }
          }
        }
      }
    }
  }
}

// 99 KiB of shared memory do not hold four tiles of 256 channels: two take turns.
TEST_F(AttentionCudaTest, TilesThatTakeTurnsGiveTheSameBits) {
  std::vector<int32_t> starts;
  for (int i = 0; i < 100; ++i) starts.push_back(i / 30 * 30);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const float probability : {0.0f, 0.2f}) {
      Problem p = self_attention("turns", 100, 1, 4, 2, 256);
      p.is_fused = false;
      p.dtype = dtype;
      p.document_starts = tensor_of(starts, {1, 100});
      p.dropout = {.key = 11, .probability = probability};
      const Buffers want = run(p, stream(), Path::kMath);
      const AsOnAnotherGpu smaller("8.6");
      const Buffers got = run(p, stream(), Path::kMath);
      expect_identical(got.dq, want.dq, text_of(p) + ": dq");
      expect_identical(got.dk, want.dk, text_of(p) + ": dk");
      expect_identical(got.dv, want.dv, text_of(p) + ": dv");
    }
  }
}

// On GPUs with less shared memory, plain kernels take the backward pass of heads of more than 64
// channels.
TEST_F(AttentionCudaTest, EveryGpuHasAWay) {
  for (const char* const capability : {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"}) {
    const AsOnAnotherGpu other(capability);
    for (const int64_t d : {64, 96, 128, 256}) {
      Problem p = self_attention(capability, 70, 1, 2, 2, d);
      p.dtype = DType::kBFloat16;
      p.document_starts = zeros({1, 70}, DType::kInt32, Stream{});
      p.dropout = {.key = 5, .probability = 0.1f};
      check(p);
    }
  }
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        const AsOnAnotherGpu unknown("7.5");
        kernels::cuda::max_shared_bytes(gpu());
      }),
      "MEGATRON_GPU_AS=7.5 is not a compute capability that kernels support; use 8.0, 8.6, 8.9, "
      "9.0, 10.0 or 12.0");
}

}  // namespace
}  // namespace megatron::attention_tests
