#include "tests/kernels/cuda/attention_problem.h"

#include <string>
#include <vector>

// Windows, caps of scores, sinks: by cuDNN, warpgroups, tensor cores and plain kernels.
namespace megatron::attention_tests {
namespace {

const std::vector<DType> kTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

Tensor sinks_of(int64_t heads) { return random_normal({heads}, {.seed = 9}); }

// Every head size with one window and one head size with every window: cuDNN takes seconds to plan
// each pair.
TEST_F(AttentionCudaTest, Windows) {
  const auto check_window = [&](DType dtype, int64_t d, int64_t window) {
    Problem p = self_attention("window " + std::to_string(window), 450, 2, 4, 2, d);
    p.window = window;
    p.dtype = dtype;
    check(p);
  };
  for (const DType dtype : kTypes) {
    for (const int64_t d : {16, 64, 96, 128, 256}) check_window(dtype, d, 65);
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t window : {1, 63, 64, 200, 1000}) check_window(dtype, 64, window);
  }
}

TEST_F(AttentionCudaTest, WindowsOfOwnKernels) {
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < 2 * 450; ++i) starts.push_back(i % 450 < 210 ? 0 : 210);
  for (const DType dtype : kTypes) {
    for (const int64_t d : {16, 64, 96, 128}) {
      for (const int64_t window : {1, 65, 200}) {
        Problem p = self_attention("window, dropout", 450, 2, 4, 2, d);
        p.window = window;
        p.dtype = dtype;
        p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
        check(p);
        p.name = "window, documents";
        p.dropout = {};
        p.document_starts = tensor_of(starts, {2, 450});
        check(p);
        p.name = "window, documents, dropout, prefixes";
        p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
        p.prefix_ends = prefixes({100, 0}, 450);
        check(p);
      }
    }
  }
}

// The queries of a rank's chunk, the keys of another one: some queries see none of them.
TEST_F(AttentionCudaTest, WindowOverABlockOfKeys) {
  for (const DType dtype : kTypes) {
    for (const int64_t d : {64, 128}) {
      for (const int64_t window : {100, 300, 700}) {
        Problem p{.name = "window over a block of keys",
                  .sq = 256,
                  .sk = 256,
                  .b = 2,
                  .heads = 4,
                  .groups = 2,
                  .d = d,
                  .query_offset = 512,
                  .key_offset = 128,
                  .is_fused = false,
                  .dtype = dtype};
        p.window = window;
        check(p);
        p.name = "window after a cache";
        p.is_causal = true;
        p.query_offset = 300;
        p.key_offset = 0;
        p.sk = 556;
        check(p);
      }
    }
  }
}

TEST_F(AttentionCudaTest, CudnnServesWindows) {
  for (const int64_t window : {64, 100, 500}) {
    Problem p = self_attention("window " + std::to_string(window), 1024, 2, 8, 2, 128);
    p.window = window;
    check_cudnn(p);
    p.sinks = sinks_of(8);
    check_cudnn(p);
  }
}

TEST_F(AttentionCudaTest, CapsOfScores) {
  for (const DType dtype : kTypes) {
    for (const int64_t d : {16, 64, 96, 128, 256}) {
      Problem p = self_attention("cap", 210, 2, 4, 2, d);
      p.logit_cap = 0.75f;
      p.dtype = dtype;
      EXPECT_FALSE(is_served_by_cudnn(p));
      check(p);
      p.name = "cap, window, dropout, sinks";
      p.window = 70;
      p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
      p.sinks = sinks_of(4);
      check(p);
    }
  }
}

TEST_F(AttentionCudaTest, Sinks) {
  for (const DType dtype : kTypes) {
    for (const int64_t d : {16, 64, 96, 128, 256}) {
      Problem p = self_attention("sinks", 210, 2, 4, 2, d);
      p.sinks = sinks_of(4);
      p.dtype = dtype;
      check(p);
      p.name = "sinks, dropout";
      p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
      check(p);
    }
  }
  // A sink takes everything, or nothing.
  Problem p = self_attention("extreme sinks", 100, 1, 2, 2, 64);
  p.sinks = tensor_of(std::vector<float>{300.0f, -300.0f}, {2});
  check(p);
}

}  // namespace
}  // namespace megatron::attention_tests
