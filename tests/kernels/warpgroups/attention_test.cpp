#include <cmath>
#include <string>
#include <vector>

#include "megatron/kernels/cuda/wgmma_attention.h"
#include "megatron/kernels/cuda/wgmma_backward_kernel.cuh"
#include "megatron/kernels/cuda/wgmma_forward_kernel.cuh"
#include "tests/kernels/warpgroups/gpu.h"
#include "tests/support/tensors.h"

// The kernels of attention on warpgroups, run by gpu.h, against attention on the CPU.
namespace megatron::kernels::cuda {
namespace {

struct Case {
  std::string name;
  int64_t sq = 0, sk = 0, b = 1, heads = 1, groups = 1, d = 64;
  AttentionSettings settings{};
  DType dtype = DType::kBFloat16;
  bool shares_keys = false;  // groups' sequences of queries lie one after the other
};

// Everything that a case reads and writes, and what borrows from it.
struct Buffers {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  explicit Buffers(const Case& c) {
    const auto random = [&](int64_t s, int64_t heads, uint64_t seed) {
      return random_normal({s, c.b, heads * c.d}, {.seed = seed, .dtype = c.dtype});
    };
    q = random(c.sq, c.heads, 1);
    k = random(c.sk, c.groups, 2);
    v = random(c.sk, c.groups, 3);
    dout = random(c.sq, c.heads, 4);
    // Marks, so that an element that is not written is seen.
    const auto marked = [](const Tensor& x) { return full(x.shape(), 77.0f, x.dtype(), Stream{}); };
    out = marked(dout);
    dq = marked(q);
    dk = marked(k);
    dv = marked(v);
    lse = full({c.b, c.heads, c.sq}, 77.0f, DType::kFloat32, Stream{});
  }
};

template <class View, class Whole>
View queries_of(const Case& c, Whole& x) {
  View view = heads_of(x.view(), c.heads);
  if (!c.shares_keys) return view;
  view.heads_per_group = c.heads / c.groups;
  view.stride_head = c.groups * c.d;
  return view;
}

struct Views {
  HeadsView out, dq, dk, dv;
  ConstHeadsView q, k, v, const_out, dout;
  Views(const Case& c, Buffers& t)
      : out(queries_of<HeadsView>(c, t.out)),
        dq(queries_of<HeadsView>(c, t.dq)),
        dk(heads_of(t.dk.view(), c.groups)),
        dv(heads_of(t.dv.view(), c.groups)),
        q(queries_of<ConstHeadsView>(c, t.q)),
        k(heads_of(t.k.view(), c.groups)),
        v(heads_of(t.v.view(), c.groups)),
        const_out(queries_of<ConstHeadsView>(c, t.out)),
        dout(queries_of<ConstHeadsView>(c, t.dout)) {}
};

Buffers on_cpu(const Case& c) {
  Buffers t(c);
  const Views x(c, t);
  cpu::attention_forward(x.out, t.lse.view(), x.q, x.k, x.v, c.settings, Stream{});
  cpu::attention_backward(x.dq, x.dk, x.dv, {}, x.dout, x.const_out, t.lse.view(), x.q, x.k, x.v,
                          c.settings, Stream{});
  return t;
}

int heads_per_group(const ConstHeadsView& x) { return static_cast<int>(x.heads_per_group); }

template <class T, int kChannels, bool kHasDropout>
bool forward(const Case& c, Buffers& t, const gpu::Timing& timing) {
  using Shape = WgmmaForwardShape<kChannels>;
  const Views x(c, t);
  const int64_t rows = c.sq + (kHasDropout ? c.settings.query_offset % kDropoutQueries : 0);
  const int64_t blocks = (rows + Shape::kQueries - 1) / Shape::kQueries * c.b * c.heads;
  const ForwardMaps maps{{x.q, Shape::kQueries}, {x.k, Shape::kKeys}, {x.v, Shape::kKeys}};
  const ForwardGroups groups{heads_per_group(x.q), heads_per_group(x.k), heads_per_group(x.v)};
  const Problem problem = problem_of(x.q, x.k, c.settings);
  return gpu::run(static_cast<int>(blocks), Shape::kBlock, Shape::kBytes, timing, [&] {
    wgmma_forward_kernel<T, Shape, kHasDropout>(maps, groups, heads_on_device<T>(x.out),
                                                t.lse.view().template as<float>(), problem);
  });
}

template <class T, int kChannels, bool kHasDropout>
bool backward(const Case& c, Buffers& t, const gpu::Timing& timing) {
  using Shape = WgmmaBackwardShape<kChannels>;
  const Views x(c, t);
  const int64_t rows = c.sq + (kHasDropout ? c.settings.query_offset % kDropoutQueries : 0);
  const auto tiles = static_cast<int>((rows + kTileQueries - 1) / kTileQueries);
  const int64_t pairs = c.b * c.heads;
  std::vector<float4> sums(static_cast<size_t>(pairs * tiles * kTileQueries * c.d / 4),
                           float4{NAN, NAN, NAN, NAN});
  std::vector<float2> statistics(static_cast<size_t>(pairs * c.sq));
  std::vector<int2> first_keys(static_cast<size_t>(c.b * tiles), int2{-7, -7});
  std::vector<int> counters(static_cast<size_t>(1 + pairs * tiles), 7);
  const BackwardScratch scratch{.sums = sums.data(),
                                .statistics = statistics.data(),
                                .bias_sums = nullptr,
                                .first_keys = first_keys.data(),
                                .ticket = counters.data(),
                                .counters = counters.data() + 1,
                                .tiles = tiles};
  const Problem problem = problem_of(x.q, x.k, c.settings);
  const auto dq = heads_on_device<T>(x.dq);
  if (!gpu::run(static_cast<int>(pairs * tiles), kThreads, 0, timing, [&] {
        backward_statistics_kernel<T>(
            dq, heads_on_device<const T>(x.dout), heads_on_device<const T>(x.const_out),
            t.lse.view().template as<float>(), scratch, problem, Shape::kKeys);
      })) {
    return false;
  }
  // Few blocks, so that they take one work after the other.
  const int blocks = std::min(BackwardWorkTiles(problem, Shape::kKeys).count, 2);
  const BackwardMaps maps{
      {x.q, kTileQueries}, {x.k, Shape::kKeys}, {x.v, Shape::kKeys}, {x.dout, kTileQueries}};
  const BackwardGroups groups{heads_per_group(x.q), heads_per_group(x.k), heads_per_group(x.v),
                              heads_per_group(x.dout)};
  return gpu::run(blocks, Shape::kBlock, Shape::kBytes, timing, [&] {
    wgmma_backward_kernel<T, Shape, kHasDropout>(maps, groups, dq, heads_on_device<T>(x.dk),
                                                 heads_on_device<T>(x.dv), scratch, problem);
  });
}

template <class T, int kChannels>
bool both(const Case& c, Buffers& t, const gpu::Timing& timing) {
  if (c.settings.dropout.is_active()) {
    return forward<T, kChannels, true>(c, t, timing) && backward<T, kChannels, true>(c, t, timing);
  }
  return forward<T, kChannels, false>(c, t, timing) && backward<T, kChannels, false>(c, t, timing);
}

bool both(const Case& c, Buffers& t, const gpu::Timing& timing) {
  if (c.dtype == DType::kBFloat16) {
    return c.d == 64 ? both<BFloat16, 64>(c, t, timing) : both<BFloat16, 128>(c, t, timing);
  }
  return c.d == 64 ? both<Float16, 64>(c, t, timing) : both<Float16, 128>(c, t, timing);
}

// Both passes give the CPU's results: with copies at once, which overwrite what products that are
// late still read, and with late copies, which products that happen at once read too early. Both
// give the same bits.
void check(Case c) {
  if (c.settings.scale == 1) c.settings.scale = 1 / std::sqrt(static_cast<float>(c.d));
  const std::string what =
      c.name + ", d " + std::to_string(c.d) + ", " + std::string(name_of(c.dtype)) + ": ";
  SCOPED_TRACE(what);
  const Buffers want = on_cpu(c);
  Buffers got(c);
  ASSERT_TRUE(both(c, got, {.has_late_products = true, .seed = 1}));
  // As on a GPU (tests/kernels/cuda/attention_test.cpp).
  Tolerance values = tolerance_of(c.dtype);
  values.absolute += 2 * values.relative;
  expect_close(got.lse, want.lse, {.relative = 1e-4, .absolute = 1e-4}, what + "lse");
  expect_close(got.out, want.out, values, what + "out");
  expect_close(got.dq, want.dq, values, what + "dq");
  expect_close(got.dk, want.dk, values, what + "dk");
  expect_close(got.dv, want.dv, values, what + "dv");

  Buffers again(c);
  ASSERT_TRUE(both(c, again, {.has_late_copies = true, .seed = 2}));
  expect_identical(again.lse, got.lse, what + "lse");
  expect_identical(again.out, got.out, what + "out");
  expect_identical(again.dq, got.dq, what + "dq");
  expect_identical(again.dk, got.dk, what + "dk");
  expect_identical(again.dv, got.dv, what + "dv");
}

// For both sizes of heads.
void check_heads(Case c) {
  for (const int64_t d : {64, 128}) {
    c.d = d;
    check(c);
  }
}

// Documents of `length` tokens.
Tensor documents(int64_t b, int64_t sq, int32_t length) {
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < b * sq; ++i) {
    starts.push_back(static_cast<int32_t>(i % sq) / length * length);
  }
  return tensor_of(starts, {b, sq});
}

TEST(WarpgroupAttention, SizesAroundTiles) {
  for (const auto& [sq, sk] :
       {std::pair{16, 1}, {64, 64}, {65, 127}, {128, 128}, {129, 129}, {193, 65}, {80, 700}}) {
    Case c{.name = "sizes " + std::to_string(sq) + " " + std::to_string(sk), .sq = sq, .sk = sk};
    if (sk > 500) c.heads = 4;  // the ring goes round: several blocks, and so orders of threads
    check_heads(c);
  }
}

TEST(WarpgroupAttention, CausalWithGroupsAndSamples) {
  Case c{.name = "causal", .sq = 150, .sk = 150, .b = 2, .heads = 4, .groups = 2};
  c.settings.is_causal = true;
  check_heads(c);
  c.name = "causal in fp16";
  c.dtype = DType::kFloat16;
  c.b = 1;
  c.heads = 2;
  check_heads(c);
}

TEST(WarpgroupAttention, Documents) {
  for (const int32_t length : {37, 130}) {
    const Tensor starts = documents(1, 310, length);
    Case c{.name = "documents of " + std::to_string(length), .sq = 310, .sk = 310};
    c.settings.is_causal = true;
    c.settings.document_starts = starts.view();
    check_heads(c);
  }
}

TEST(WarpgroupAttention, DropsWhatTheCpuDrops) {
  for (const float probability : {0.1f, 0.5f}) {
    Case c{.name = "dropout", .sq = 210, .sk = 210, .heads = 2};
    c.settings.is_causal = true;
    c.settings.first_head = 8;
    c.settings.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = probability};
    check_heads(c);
  }
}

// Dropout counts positions in groups of 16, so the first tile begins before the first query.
TEST(WarpgroupAttention, DropoutAfterACache) {
  for (const int64_t offset : {5, 15, 77}) {
    Case c{.name = "after a cache", .sq = 133, .sk = 133 + offset};
    c.settings.is_causal = true;
    c.settings.query_offset = offset;
    c.settings.dropout = {.key = 3, .first_sample = 1, .probability = 0.2f};
    c.settings.dropout_length = 512;
    check_heads(c);
  }
}

// Some queries see a part of the block, and some nothing; some tiles of queries see nothing.
TEST(WarpgroupAttention, BlocksOfKeys) {
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < 2 * 200; ++i) {
    starts.push_back(i % 200 < 20 ? 0 : i % 200 < 40 ? 300 + i / 200 : i % 200 < 75 ? 420 : 600);
  }
  const Tensor of_queries = tensor_of(starts, {2, 200});
  Case c{.name = "block", .sq = 200, .sk = 200, .b = 2};
  c.settings.query_offset = 640;
  c.settings.key_offset = 224;
  c.settings.document_starts = of_queries.view();
  check_heads(c);
  c.name = "own block";
  c.settings.query_offset = 224;
  c.settings.is_causal = true;
  c.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  c.settings.dropout_length = 1024;
  check_heads(c);
}

// Tiles before and after the windows of a tile are left out.
TEST(WarpgroupAttention, Windows) {
  const Tensor sinks = tensor_of(std::vector<float>{0.5f, -2.0f, 3.0f, 40.0f}, {4});
  for (const int64_t window : {1, 65, 150}) {
    Case c{.name = "window " + std::to_string(window), .sq = 450, .sk = 450};
    c.settings.is_causal = true;
    c.settings.window = window;
    check_heads(c);
  }
  const Tensor starts = documents(1, 310, 130);
  Case c{.name = "window of documents", .sq = 310, .sk = 310, .heads = 4, .groups = 2};
  c.settings.is_causal = true;
  c.settings.window = 70;
  c.settings.document_starts = starts.view();
  c.settings.sinks = sinks.view();
  check_heads(c);
  c.name = "window with dropout";
  c.settings.document_starts = {};
  c.settings.dropout = {.key = 0x123456789abcdef, .first_sample = 5, .probability = 0.3f};
  check_heads(c);
}

// Some queries of another rank see a part of the block, and some nothing.
TEST(WarpgroupAttention, WindowsOverABlockOfKeys) {
  for (const int64_t window : {100, 430, 550}) {
    Case c{.name = "window " + std::to_string(window), .sq = 200, .sk = 200, .b = 2};
    c.settings.query_offset = 640;
    c.settings.key_offset = 224;
    c.settings.window = window;
    check_heads(c);
  }
}

// Whole tiles of keys are hidden, at the end, at the beginning, and all.
TEST(WarpgroupAttention, KeyPadding) {
  constexpr int64_t kKeys = 270;
  Tensor mask({4, kKeys}, DType::kBool, Stream{});
  for (int64_t i = 0; i < kKeys; ++i) {
    mask.view().as<bool>()[i] = i % 3 == 0;
    mask.view().as<bool>()[kKeys + i] = i >= 130;
    mask.view().as<bool>()[2 * kKeys + i] = i < 140;
    mask.view().as<bool>()[3 * kKeys + i] = true;
  }
  Case c{.name = "padding", .sq = 70, .sk = kKeys, .b = 4};
  c.settings.key_padding_mask = mask.view();
  c.settings.dropout = {.key = 11, .probability = 0.1f};
  check_heads(c);
}

TEST(WarpgroupAttention, BiasesAndNegativeScales) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f}, {1});
  Case c{.name = "ALiBi", .sq = 150, .sk = 150};
  c.settings.is_causal = true;
  c.settings.alibi_slopes = slopes.view();
  check_heads(c);
  c.name = "negative scale";
  c.settings.alibi_slopes = {};
  c.settings.scale = -0.1f;
  check_heads(c);
}

// Retro's neighbours read the chunk that they were retrieved for.
TEST(WarpgroupAttention, SequencesOfQueriesShareTheirKeys) {
  Case c{.name = "shared keys", .sq = 128, .sk = 64, .b = 2, .heads = 4, .groups = 2};
  c.shares_keys = true;
  c.settings.dropout = {.key = 5, .first_sample = 2, .probability = 0.2f, .parts_of_sample = 2};
  check_heads(c);
}

TEST(WarpgroupAttention, OtherKernelsServeTheRest) {
  ConstHeadsView q{.s = 64, .b = 1, .heads = 2, .d = 64};
  ConstHeadsView k = q;
  AttentionSettings settings;
  settings.dropout.probability = 0.5f;
  settings.is_causal = true;
  EXPECT_TRUE(suits_warpgroups(q, k, settings));
  q.d = 128;
  EXPECT_TRUE(suits_warpgroups(q, k, settings));
  for (const int64_t d : {8, 32, 72, 80, 96, 120}) {
    q.d = d;
    EXPECT_FALSE(suits_warpgroups(q, k, settings)) << d;
  }
  q.d = 64;
  k.s = 0;
  EXPECT_FALSE(suits_warpgroups(q, k, settings));
  k.s = 1;
  EXPECT_TRUE(suits_warpgroups(q, k, settings));
  q.heads = 0;
  EXPECT_FALSE(suits_warpgroups(q, k, settings));
  q.heads = 2;
  const Tensor any({1}, DType::kInt32, Stream{});
  AttentionSettings other = settings;
  other.prefix_ends = any.view();
  EXPECT_FALSE(suits_warpgroups(q, k, other));
  other = settings;
  other.relative_bias = any.view();
  EXPECT_FALSE(suits_warpgroups(q, k, other));
  other = settings;
  other.document_starts = other.key_padding_mask = other.alibi_slopes = any.view();
  EXPECT_TRUE(suits_warpgroups(q, k, other));
  other.dropout.probability = 0.51f;
  EXPECT_FALSE(suits_warpgroups(q, k, other));
}

// Every threshold of a dropout of at most one half, at the bits around it and at both ends.
TEST(WarpgroupAttention, PackedComparisonsDropWhatIsNotBelowTheThreshold) {
  for (uint32_t threshold = 0x8000; threshold <= 0xFFFF; ++threshold) {
    const PairDropper dropper(threshold);
    for (const uint32_t low : {0u, 1u, threshold - 1, threshold, 0x7FFFu, 0xFFFFu}) {
      for (const uint32_t high : {0u, 1u, threshold - 1, threshold, 0x7FFFu, 0xFFFFu}) {
        const uint32_t dropped = dropper.dropped(high << 16 | low);
        ASSERT_EQ((dropped >> 15 & 1) != 0, low >= threshold) << threshold << " " << low;
        ASSERT_EQ(dropped >> 31 != 0, high >= threshold) << threshold << " " << high;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cuda
