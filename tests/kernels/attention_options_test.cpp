#include "tests/kernels/attention_problem.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

// Windows, caps of scores, sinks.
namespace megatron::attention_tests {
namespace {

Problem causal(const std::string& name, int64_t s) {
  return {.name = name,
          .sq = s,
          .sk = s,
          .b = 2,
          .heads = 4,
          .groups = 2,
          .d = 16,
          .settings = {.scale = 0.25f, .is_causal = true}};
}

TEST(AttentionOptionsTest, WindowsAroundTiles) {
  for (const int64_t window : {1, 2, 63, 64, 65, 150, 200}) {
    Problem p = causal("window " + std::to_string(window), 150);
    p.settings.window = window;
    check(p);
  }
}

TEST(AttentionOptionsTest, WindowWithDropoutDocumentsAndPrefixes) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  std::vector<int32_t> ends;
  for (int32_t i = 0; i < 2 * s; ++i) {
    const auto at = static_cast<int32_t>(i % s);
    starts.push_back(at < 67 ? 0 : 67);
    ends.push_back(at < 20 ? 20 : 0);
  }
  const Tensor documents = tensor_of(starts, {2, s});
  const Tensor prefixes = tensor_of(ends, {2, s});
  Problem p = causal("window of documents", s);
  p.settings.window = 30;
  p.settings.document_starts = documents.view();
  p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  check(p);
  p.name = "window and prefixes";
  p.settings.document_starts = {};
  p.settings.prefix_ends = prefixes.view();
  check(p);
}

TEST(AttentionOptionsTest, WindowAfterACache) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f, 0.125f, 0.25f, 1.0f}, {4});
  Problem p = causal("window after a cache", 100);
  p.sq = 9;
  p.settings.query_offset = 91;
  p.settings.window = 20;
  p.settings.alibi_slopes = slopes.view();
  p.widening = 4;  // scores of up to 100
  check(p);
  // Keys of another rank: some queries see none of them.
  p.name = "window over a block of keys";
  p.sq = 70;
  p.settings.alibi_slopes = {};
  p.settings.is_causal = false;
  p.settings.query_offset = 100;
  p.widening = 1;
  check(p);
}

// Work grows with the window: tiles of keys that no query of a tile sees are not read, so that a
// value that is not a number in them does not reach the output.
TEST(AttentionOptionsTest, WindowLeavesTilesOut) {
  Problem p = causal("window", 1000);
  p.settings.window = 100;
  const Inputs in = inputs_of(p);
  Inputs spoiled = in;
  spoiled.v = copied(in.v);
  const int64_t width = p.b * p.groups * p.d;
  for (int64_t i = 0; i < 640 * width; ++i) {
    spoiled.v.span<float>()[static_cast<size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
  }
  const auto last = [&](const Inputs& of) { return run(p, of).out.slice(800, 200); };
  expect_identical(last(spoiled), last(in));
}

TEST(AttentionOptionsTest, CapOfScores) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = causal("cap", 90);
    p.dtype = dtype;
    p.settings.logit_cap = 0.75f;
    check(p);
    p.settings.window = 40;
    p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
    check(p);
  }
}

TEST(AttentionOptionsTest, Sinks) {
  const Tensor sinks = tensor_of(std::vector<float>{0.5f, -40.0f, 60.0f, 2.0f}, {4});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem p = causal("sinks", 90);
    p.dtype = dtype;
    p.settings.sinks = sinks.view();
    check(p);
    p.settings.window = 9;
    p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
    check(p);
  }
}

// Sinks of rows that see no key take everything.
TEST(AttentionOptionsTest, SinksMayBeAddedAfterwards) {
  const Tensor sinks = tensor_of(std::vector<float>{0.5f, -40.0f, 60.0f, 2.0f}, {4});
  Tensor mask({2, 90}, DType::kBool, Stream{});
  for (int64_t i = 0; i < 180; ++i) mask.view().as<bool>()[i] = i >= 90;
  Problem p = causal("sinks", 90);
  p.settings.key_padding_mask = mask.view();
  Outputs plain = run(p, inputs_of(p));
  kernels::add_attention_sinks(kernels::heads_of(plain.out.view(), p.heads), plain.lse.view(),
                               sinks.view(), Stream{});
  p.settings.sinks = sinks.view();
  check(p);
  const Outputs whole = run(p, inputs_of(p));
  expect_close(plain.out, whole.out, Tolerance{1e-6, 1e-5});
  expect_close(plain.lse, whole.lse, Tolerance{1e-6, 1e-6});
}

}  // namespace
}  // namespace megatron::attention_tests
