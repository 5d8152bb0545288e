#include "tests/kernels/cuda/attention_problem.h"

#include <cstring>
#include <utility>
#include <vector>

// Masks for documents, prefixes and padding; biases of scores; dropout.
namespace megatron::attention_tests {
namespace {

TEST_F(AttentionCudaTest, DocumentStarts) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < s; ++i) {
      const int32_t boundary = batch == 0 ? 140 : 67;
      starts.push_back(i >= boundary ? boundary : i >= 20 ? 20 : 0);
    }
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = self_attention("documents", s, 2, 4, 2, 16);
    p.document_starts = tensor_of(starts, {2, s});
    p.dtype = dtype;
    check(p);
  }
}

TEST_F(AttentionCudaTest, Prefixes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t s : {1, 16, 33, 64, 65, 130, 300}) {
      Problem p = self_attention("prefixes", s, 4, 2, 2, 16);
      p.prefix_ends = prefixes({0, s / 2 + 1, s, s + 50}, s);
      p.dtype = dtype;
      EXPECT_FALSE(is_served_by_cudnn(p));
      check(p);
    }
    for (const int64_t d : {64, 96, 128}) {
      Problem p = self_attention("prefixes, dropout", 210, 3, 4, 2, d);
      p.prefix_ends = prefixes({7, 64, 177}, 210);
      p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
      p.dtype = dtype;
      check(p);
      p.name = "prefixes, dropout, relative bias, ALiBi";
      p.relative_bias = random_normal({4, 419}, {.seed = 6});
      p.alibi_slopes = tensor_of(std::vector<float>{0.5f, 0.125f, 0.25f, 0.0f}, {4});
      check(p);
    }
    Problem after{.name = "prefixes after a cache",
                  .sq = 60,
                  .sk = 137,
                  .b = 2,
                  .heads = 2,
                  .groups = 2,
                  .d = 32,
                  .is_causal = true,
                  .query_offset = 70,
                  .is_fused = false,
                  .dtype = dtype,
                  .prefix_ends = prefixes({90, 137}, 60)};
    after.dropout = {.key = 3, .first_sample = 1, .probability = 0.2f};
    check(after);
    after.name = "prefixes that no mask can widen";
    after.is_causal = false;
    check(after);
  }
}

// Two documents a row, each with a prefix.
TEST_F(AttentionCudaTest, PrefixesOfDocuments) {
  const int64_t s = 310;
  std::vector<int32_t> starts;
  std::vector<int32_t> ends;
  for (int32_t batch = 0; batch < 2; ++batch) {
    const int32_t boundary = batch == 0 ? 20 : 140;
    for (int32_t i = 0; i < s; ++i) {
      const int32_t end = i < boundary ? boundary - 1 : boundary + 150;
      starts.push_back(i < boundary ? 0 : boundary);
      ends.push_back(i < end ? end : 0);
    }
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Problem p = self_attention("prefixes of documents", s, 2, 4, 2, 64);
    p.prefix_ends = tensor_of(ends, {2, s});
    p.document_starts = tensor_of(starts, {2, s});
    p.dtype = dtype;
    check(p);
    p.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
    check(p);
  }
}

TEST_F(AttentionCudaTest, KeyPaddingUpToEveryKey) {
  const int64_t sk = 80;
  const std::vector<int64_t> lengths = {80, 33, 0};
  Tensor mask({3, sk}, DType::kBool, Stream{});
  for (int64_t i = 0; i < 3 * sk; ++i) {
    mask.view().as<bool>()[i] = i % sk >= lengths[static_cast<size_t>(i / sk)];
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    check({.name = "padding",
           .sq = 60,
           .sk = sk,
           .b = 3,
           .heads = 2,
           .groups = 1,
           .d = 16,
           .is_fused = false,
           .dtype = dtype,
           .key_padding_mask = mask});
  }
}

// Whole tiles of keys are hidden, at the end or at the beginning.
TEST_F(AttentionCudaTest, KeyPaddingOnTensorCores) {
  const int64_t s = 300;
  Tensor mask({4, s}, DType::kBool, Stream{});
  for (int64_t i = 0; i < s; ++i) {
    mask.view().as<bool>()[i] = false;
    mask.view().as<bool>()[s + i] = i >= 130;
    mask.view().as<bool>()[2 * s + i] = i < 140;
    mask.view().as<bool>()[3 * s + i] = true;
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t d : {64, 128}) {
      for (const float probability : {0.0f, 0.1f, 0.5f, 0.6f}) {
        Problem p = self_attention("padding", s, 4, 4, 2, d, false);
        p.dtype = dtype;
        p.key_padding_mask = mask;
        p.dropout = {.key = 11, .probability = probability};
        check(p);
      }
    }
  }
}

TEST_F(AttentionCudaTest, Alibi) {
  Problem p = self_attention("alibi", 90, 1, 2, 2, 16);
  p.alibi_slopes = tensor_of(std::vector<float>{0.5f, 0.125f}, {2});
  check(p);
}

// Sizes around the tiles of both kernels; with every other setting.
TEST_F(AttentionCudaTest, RelativeBias) {
  const auto biased = [](Problem p, uint64_t seed) {
    p.relative_bias = random_normal({p.heads, p.sq + p.sk - 1}, {.seed = seed});
    return p;
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t s : {1, 16, 33, 64, 65, 130, 257}) {
      for (const bool is_causal : {false, true}) {
        Problem p = biased(self_attention("relative bias", s, 3, 2, 2, 16, is_causal), 5);
        p.dtype = dtype;
        // T5's scale; it also multiplies the rounding of gradients in 16 bits.
        if (dtype == DType::kFloat32) p.scale = 1;
        check(p);
      }
    }
    for (const int64_t d : {64, 96, 128}) {
      Problem p = biased(self_attention("relative bias", 70, 2, 4, 2, d), 6);
      p.dtype = dtype;
      p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
      p.alibi_slopes = tensor_of(std::vector<float>{0.5f, 0.125f, 0.25f, 0.0f}, {4});
      check(p);
    }
    Problem after = biased({.name = "relative bias after a cache",
                            .sq = 60,
                            .sk = 137,
                            .b = 2,
                            .heads = 2,
                            .groups = 2,
                            .d = 32,
                            .is_causal = true,
                            .query_offset = 77,
                            .is_fused = false,
                            .dtype = dtype},
                           7);
    after.dropout = {.key = 3, .first_sample = 1, .probability = 0.2f};
    check(after);
    Tensor mask({2, 137}, DType::kBool, Stream{});
    for (int64_t i = 0; i < 2 * 137; ++i) mask.view().as<bool>()[i] = i % 137 >= (i < 137 ? 90 : 0);
    after.is_causal = false;
    after.key_padding_mask = mask;
    check(after);
  }
}

TEST_F(AttentionCudaTest, RelativeBiasIsBitEqualInEveryRun) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = self_attention("relative bias", 200, 4, 4, 4, 64, false);
    p.relative_bias = random_normal({4, 399}, {.seed = 1});
    p.dtype = dtype;
    const Buffers first = run(p, stream(), Path::kChosen);
    const Buffers second = run(p, stream(), Path::kChosen);
    for (const auto& [a, b] : {std::pair{first.dbias, second.dbias}, {first.dq, second.dq}}) {
      EXPECT_EQ(std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.bytes())), 0);
    }
  }
}

TEST_F(AttentionCudaTest, DropsWhatTheCpuDrops) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = self_attention("dropout", 90, 2, 4, 2, 16);
    p.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
    p.first_head = 4;
    p.dtype = dtype;
    check(p);
    p.more_samples = tensor_of(std::vector<int64_t>{9}, {1});
    check(p);
  }
}

}  // namespace
}  // namespace megatron::attention_tests
