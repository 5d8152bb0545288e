#include "megatron/kernels/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/cudnn_attention.h"
#include "megatron/kernels/cuda/math_attention.h"
#include "tests/kernels/cuda/twin.h"

// Attention on a GPU against attention on the CPU: through the entry point, which chooses between
// cuDNN and own kernels, and through the own kernels alone.
namespace megatron {
namespace {

using kernels::AttentionSettings;
using kernels::ConstHeadsView;
using kernels::HeadsView;

struct Problem {
  std::string name;
  int64_t sq = 0, sk = 0, b = 0, heads = 0, groups = 0, d = 0;
  float scale = 0;  // 0: 1 / sqrt(d)
  bool is_causal = false;
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  bool is_fused = true;  // queries, keys and values in one projection, where sq == sk
  DType dtype = DType::kFloat32;
  DropoutKey dropout{};
  int64_t dropout_length = 0;
  int64_t first_head = 0;
  bool is_deterministic = false;
  Tensor document_starts{}, prefix_ends{}, key_padding_mask{};  // on the CPU
  Tensor alibi_slopes{}, relative_bias{};                       // on the CPU
  Tensor more_samples{};                                        // [1] int64 on the CPU, of dropout
  bool shares_keys = false;  // groups' sequences of queries lie one after the other, not fused
  int64_t nan_key = -1;      // whose channels are NaN, where keys are not fused with queries
};

std::string text_of(const Problem& p) {
  return p.name + ": " + std::to_string(p.sq) + " queries, " + std::to_string(p.sk) + " keys, b " +
         std::to_string(p.b) + ", " + std::to_string(p.heads) + " heads on " +
         std::to_string(p.groups) + ", d " + std::to_string(p.d) +
         (p.is_causal ? " causal " : " ") + std::string(name_of(p.dtype));
}

// What attention reads and writes, all on one stream. Of a fused projection q holds everything.
struct Buffers {
  Tensor q, k, v, dout, out, lse, dq, dk, dv, dbias;
};

Buffers buffers_of(const Problem& p, Stream stream) {
  const auto random_on_cpu = [&](int64_t s, int64_t width, uint64_t seed) {
    return random_normal({s, p.b, width * p.d}, {.seed = seed, .dtype = p.dtype});
  };
  const auto random = [&](int64_t s, int64_t width, uint64_t seed) {
    return random_on_cpu(s, width, seed).to(stream);
  };
  // Marks, so that an element that is not written is seen.
  const auto marked = [](const Tensor& x) {
    return full(x.shape(), 77.0f, x.dtype(), Stream{}).to(x.stream());
  };
  Buffers t;
  if (p.is_fused) {
    t.q = random(p.sq, p.heads + 2 * p.groups, 1);
  } else {
    t.q = random(p.sq, p.heads, 1);
    Tensor k = random_on_cpu(p.sk, p.groups, 2);
    if (p.nan_key >= 0) {  // all bits set are a NaN in every floating type
      const int64_t row_bytes = k.bytes() / p.sk;
      std::memset(static_cast<std::byte*>(k.view().data) + p.nan_key * row_bytes, 0xff,
                  static_cast<size_t>(row_bytes));
    }
    t.k = k.to(stream);
    t.v = random(p.sk, p.groups, 3);
    t.dk = marked(t.k);
    t.dv = marked(t.v);
  }
  t.dq = marked(t.q);
  t.dout = random(p.sq, p.heads, 4);
  t.out = marked(t.dout);
  if (p.relative_bias.defined()) t.dbias = marked(p.relative_bias.to(stream));
  t.lse = full({p.b, p.heads, p.sq}, 77.0f, DType::kFloat32, Stream{}).to(stream);
  return t;
}

// The heads of queries and of outputs.
template <class View, class Whole>
View queries_of(const Problem& p, Whole& x) {
  View view = kernels::heads_of(x.view(), p.heads);
  if (!p.shares_keys) return view;
  view.heads_per_group = p.heads / p.groups;
  view.stride_head = p.groups * p.d;
  return view;
}

template <class View, class Whole>
kernels::Qkv<View> qkv_of(const Problem& p, Whole& q, Whole& k, Whole& v) {
  if (p.is_fused) return kernels::split_qkv(q.view(), p.heads, p.groups);
  return {queries_of<View>(p, q), kernels::heads_of(k.view(), p.groups),
          kernels::heads_of(v.view(), p.groups)};
}

enum class Path { kChosen, kMath };

// Settings on a device, and what they borrow.
struct OnDevice {
  OnDevice(const Problem& p, Stream stream) {
    const auto moved = [&](const Tensor& x) { return x.defined() ? x.to(stream) : Tensor(); };
    starts = moved(p.document_starts);
    ends = moved(p.prefix_ends);
    mask = moved(p.key_padding_mask);
    slopes = moved(p.alibi_slopes);
    relative_bias = moved(p.relative_bias);
    more_samples = moved(p.more_samples);
    const auto view = [](const Tensor& x) { return x.defined() ? x.view() : ConstView{}; };
    settings = {.scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<float>(p.d)),
                .is_causal = p.is_causal,
                .query_offset = p.query_offset,
                .key_offset = p.key_offset,
                .document_starts = view(starts),
                .prefix_ends = view(ends),
                .key_padding_mask = view(mask),
                .alibi_slopes = view(slopes),
                .relative_bias = view(relative_bias),
                .dropout = p.dropout,
                .dropout_length = p.dropout_length,
                .first_head = p.first_head};
    if (more_samples.defined()) {
      settings.dropout.more_samples = std::as_const(more_samples).view().as<int64_t>();
    }
  }
  Tensor starts, ends, mask, slopes, relative_bias, more_samples;
  AttentionSettings settings;
};

Tensor scratch(int64_t bytes, Stream stream) {
  return Tensor({std::max<int64_t>(bytes, 1)}, DType::kUInt8, stream);
}

// Runs both passes and returns the results on the CPU.
Buffers run(const Problem& p, Stream stream, Path path) {
  stream.options.is_deterministic = p.is_deterministic;
  Buffers t = buffers_of(p, stream);
  const OnDevice on_device(p, stream);
  const AttentionSettings& settings = on_device.settings;
  const auto [q, k, v] = qkv_of<ConstHeadsView, const Tensor>(p, t.q, t.k, t.v);
  const auto [dq, dk, dv] = qkv_of<HeadsView, Tensor>(p, t.dq, t.dk, t.dv);
  const HeadsView out = queries_of<HeadsView>(p, t.out);
  const ConstHeadsView dout = queries_of<ConstHeadsView>(p, std::as_const(t.dout));
  const TensorView dbias = t.dbias.defined() ? t.dbias.view() : TensorView{};
  if (path == Path::kChosen) {
    Tensor forward = scratch(
        kernels::attention_forward_workspace_bytes(out, t.lse.view(), q, k, v, settings, stream),
        stream);
    kernels::attention_forward(out, t.lse.view(), q, k, v, settings, forward.view(), stream);
    Tensor backward = scratch(kernels::attention_backward_workspace_bytes(
                                  dq, dk, dv, dout, out, t.lse.view(), q, k, v, settings, stream),
                              stream);
    kernels::attention_backward(dq, dk, dv, dbias, dout, out, t.lse.view(), q, k, v, settings,
                                backward.view(), stream);
  } else {
    Tensor delta = scratch(kernels::cuda::math_attention_delta_bytes(q), stream);
    kernels::cuda::math_attention_forward(out, t.lse.view(), q, k, v, settings, stream);
    kernels::cuda::math_attention_backward(dq, dk, dv, dbias, dout, out, t.lse.view(), q, k, v,
                                           settings, static_cast<float*>(delta.view().data),
                                           stream);
  }
  for (Tensor* x : {&t.out, &t.lse, &t.dq, &t.dk, &t.dv, &t.dbias}) {
    if (x->defined()) *x = x->to(Stream{});
  }
  return t;
}

// Tensor cores read probabilities rounded to 16 bits, and backward the rounded output: the errors
// enter every sum at the size of its terms.
Tolerance on_tensor_cores(DType dtype) {
  Tolerance values = tolerance_of(dtype);
  values.absolute += 2 * values.relative;
  return values;
}

// rounded: how many of the two read rounded probabilities and outputs.
void expect_results(const Problem& p, const Buffers& got, const Buffers& want,
                    const std::string& path, int rounded = 1) {
  // Sums over keys, queries and channels whose terms cancel: bounded by the size of the terms.
  const auto terms = std::max({p.sq * p.heads / p.groups, p.sk, p.d, int64_t{1}});
  Tolerance sums = tolerance_of(DType::kFloat32).for_terms(terms);
  sums.absolute = 2e-6 * std::sqrt(static_cast<double>(terms));
  // A score is rounded once more when its bias is added.
  if (p.relative_bias.defined()) sums = sums.for_terms(2);
  Tolerance values = sums;
  Tolerance logs = sums;
  if (p.dtype != DType::kFloat32) {
    values = on_tensor_cores(p.dtype);
    values.absolute *= rounded;
    logs = {.relative = 1e-4, .absolute = 1e-4};
  }
  const std::string what = text_of(p) + " by " + path + ": ";
  expect_close(got.lse, want.lse, logs, what + "lse");
  expect_close(got.out, want.out, values, what + "out");
  expect_close(got.dq, want.dq, values, what + (p.is_fused ? "dqkv" : "dq"));
  if (want.dbias.defined()) {
    // Over samples and the pairs of a distance, too.
    const int64_t pairs = p.b * std::min(p.sq, p.sk);
    const Tolerance of_bias = (p.dtype == DType::kFloat32 ? sums : values).for_terms(pairs);
    expect_close(got.dbias, want.dbias, of_bias, what + "drelative_bias");
  }
  if (p.is_fused) return;
  expect_close(got.dk, want.dk, values, what + "dk");
  expect_close(got.dv, want.dv, values, what + "dv");
}

class AttentionCudaTest : public CudaTest {
 protected:
  // Both paths against the CPU.
  void check(const Problem& p) const {
    const Buffers want = run(p, Stream{}, Path::kChosen);
    expect_results(p, run(p, stream(), Path::kMath), want, "own kernels");
    const bool is_cudnn = is_served_by_cudnn(p);
    expect_results(p, run(p, stream(), Path::kChosen), want, is_cudnn ? "cuDNN" : "entry point");
  }

  bool is_served_by_cudnn(const Problem& p) const {
    Buffers t = buffers_of(p, stream());
    const OnDevice on_device(p, stream());
    const auto [q, k, v] = qkv_of<ConstHeadsView, const Tensor>(p, t.q, t.k, t.v);
    const auto [dq, dk, dv] = qkv_of<HeadsView, Tensor>(p, t.dq, t.dk, t.dv);
    const HeadsView out = queries_of<HeadsView>(p, t.out);
    const ConstHeadsView dout = queries_of<ConstHeadsView>(p, std::as_const(t.dout));
    return kernels::cuda::cudnn_forward_workspace_bytes(out, t.lse.view(), q, k, v,
                                                        on_device.settings, stream()) &&
           kernels::cuda::cudnn_backward_workspace_bytes(dq, dk, dv, dout, out, t.lse.view(), q, k,
                                                         v, on_device.settings, stream());
  }

  // As check, and cuDNN must serve it: what training runs on.
  void check_cudnn(Problem p) const {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      p.dtype = dtype;
      EXPECT_TRUE(is_served_by_cudnn(p)) << text_of(p) << ": see the warning above for why not";
      check(p);
    }
  }
};

Problem self_attention(const std::string& name, int64_t s, int64_t b, int64_t heads, int64_t groups,
                       int64_t d, bool is_causal = true) {
  return {.name = name,
          .sq = s,
          .sk = s,
          .b = b,
          .heads = heads,
          .groups = groups,
          .d = d,
          .is_causal = is_causal};
}

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

// Every sample has a prefix of its own, which may end anywhere in a tile, at the end, or beyond.
Tensor prefixes(const std::vector<int32_t>& of_samples, int64_t s) {
  std::vector<int32_t> ends;
  for (const int32_t end : of_samples) {
    for (int32_t i = 0; i < s; ++i) ends.push_back(i < end ? end : 0);
  }
  return tensor_of(ends, {static_cast<int64_t>(of_samples.size()), s});
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
}  // namespace megatron
