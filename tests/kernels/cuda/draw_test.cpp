#include "megatron/kernels/draw.h"

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/device/philox.h"
#include "megatron/kernels/decode_inputs.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::Draw;

using DrawCudaTest = CudaDtypeTest;

// Every filter alone and with others, at many random numbers.
std::vector<Draw> many_draws(int32_t vocab_size) {
  const Draw kinds[] = {{},
                        {.top_k = 1},
                        {.top_k = 2},
                        {.top_k = 50},
                        {.temperature = 0.3},
                        {.temperature = 3, .top_k = 7},
                        {.top_p = 0.1},
                        {.top_p = 0.9},
                        {.top_p = 1.0},
                        {.temperature = 2, .top_p = 0.5, .top_k = 20},
                        {.min_p = 0.05},
                        {.top_p = 0.8, .min_p = 0.01, .top_k = 1000}};
  std::vector<Draw> draws;
  for (uint32_t i = 0; i < 20; ++i) {
    for (Draw draw : kinds) {
      draw.vocab_size = vocab_size;
      draw.uniform = unit_interval(philox({i, 0, 0, 0}, 5)[0]);
      if (i == 0) draw.uniform = 0;
      draws.push_back(draw);
    }
  }
  return draws;
}

Tensor bytes_of(const std::vector<Draw>& draws) {
  const ConstView view = kernels::view_of(draws);
  const auto* const bytes = static_cast<const uint8_t*>(view.data);
  return tensor_of(std::vector<uint8_t>(bytes, bytes + view.numel()), {view.numel()});
}

void draw(std::vector<Tensor>& t, Stream stream) {
  const int64_t bytes = kernels::draw_workspace_bytes(t[1].size(0), t[1].size(1), stream);
  Tensor workspace({std::max<int64_t>(bytes, 1)}, DType::kUInt8, stream);
  kernels::draw_tokens(t[0].view(), TensorView{}, t[1].view(), t[2].view(), {}, workspace.view(),
                       stream);
}

TEST_P(DrawCudaTest, DrawsWhatTheHostDraws) {
  for (const int64_t v : {1, 5, 1000, 50304}) {
    for (const int64_t padding : {0, 3}) {
      const std::vector<Draw> draws = many_draws(static_cast<int32_t>(v));
      const auto rows = static_cast<int64_t>(draws.size());
      const Tensor logits =
          random_normal({rows, v + padding}, {.seed = 1, .stddev = 2, .dtype = GetParam()});
      expect_twins({zeros({rows}, DType::kInt32, Stream{}), logits, bytes_of(draws)}, draw,
                   {.what = std::to_string(v)});
    }
  }
}

// Few different logits: ties at every limit.
TEST_P(DrawCudaTest, TiesAreBrokenAsOnTheHost) {
  constexpr int64_t kVocabulary = 300;
  const std::vector<Draw> draws = many_draws(kVocabulary);
  const auto rows = static_cast<int64_t>(draws.size());
  std::vector<float> values;
  for (int64_t i = 0; i < rows * kVocabulary; ++i) {
    values.push_back(static_cast<float>(philox({static_cast<uint32_t>(i), 0, 0, 0}, 3)[0] % 4));
  }
  const Tensor logits = cast(tensor_of(values, {rows, kVocabulary}), GetParam());
  expect_twins({zeros({rows}, DType::kInt32, Stream{}), logits, bytes_of(draws)}, draw);
}

TEST_P(DrawCudaTest, NothingIsDrawnFromNanOrNoVocabulary) {
  Tensor logits = random_normal({3, 40}, {.seed = 2});
  logits.span<float>()[45] = std::numeric_limits<float>::quiet_NaN();
  logits.span<float>()[110] = -std::numeric_limits<float>::infinity();
  const std::vector<Draw> draws = {
      {.top_k = 1, .vocab_size = 0}, {.vocab_size = 40}, {.uniform = 0.7, .vocab_size = 40}};
  const std::vector<Tensor> tensors = {zeros({3}, DType::kInt32, Stream{}),
                                       cast(logits, GetParam()), bytes_of(draws)};
  expect_twins(tensors, draw);
  std::vector<Tensor> t;
  for (const Tensor& x : tensors) t.push_back(x.to(stream()));
  draw(t, stream());
  const Tensor tokens = t[0].to(Stream{});
  EXPECT_EQ(tokens.span<int32_t>()[0], kernels::kNoToken);
  EXPECT_EQ(tokens.span<int32_t>()[1], kernels::kNoToken);
  EXPECT_GE(tokens.span<int32_t>()[2], 0);
}

// Penalties of texts in pages, and log-probabilities, with every filter.
TEST_P(DrawCudaTest, PenaltiesAndLogProbabilitiesAreThoseOfTheHost) {
  constexpr int64_t kPageTokens = 4, kMaxPages = 100;
  constexpr auto kBytes =
      static_cast<int64_t>(kernels::kMaxLogProbabilities * sizeof(kernels::TokenLogProbability));
  for (const int64_t v : {5, 1003, 50304}) {
    std::vector<Draw> draws = many_draws(static_cast<int32_t>(v - 1));
    draws.resize(36);
    std::vector<int32_t> lengths;
    for (size_t i = 0; i < draws.size(); ++i) {
      Draw& draw = draws[i];
      draw.repetition_penalty = i % 2 == 0 ? 1.3 : 1;
      draw.presence_penalty = i % 3 == 0 ? 0.7 : 0;
      draw.frequency_penalty = i % 5 == 0 ? -0.4 : 0.2;
      if (i % 7 == 0) draw.repetition_penalty = 1, draw.frequency_penalty = 0;
      draw.prompt_length = static_cast<int32_t>(i);
      draw.known_size = static_cast<int32_t>(v);
      draw.num_probabilities = static_cast<int32_t>(i % 4 == 1 ? 0 : 1 + i % 4 * 6);
      lengths.push_back(static_cast<int32_t>(i * 11));
    }
    const auto rows = static_cast<int64_t>(draws.size());
    // Texts of few different tokens, so that some are there many times.
    std::vector<int32_t> ids, pages;
    for (int64_t i = 0; i < rows * kMaxPages * kPageTokens; ++i) {
      const uint32_t word = philox({static_cast<uint32_t>(i), 0, 0, 0}, 9)[0];
      ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(std::min<int64_t>(v, 300))));
    }
    for (int64_t i = 0; i < rows * kMaxPages; ++i) {
      pages.push_back(static_cast<int32_t>(rows * kMaxPages - 1 - i));
    }
    const auto run = [&](Stream on) {
      Tensor tokens = zeros({rows}, DType::kInt32, on);
      Tensor found = zeros({rows, kBytes}, DType::kUInt8, on);
      const Tensor logits =
          random_normal({rows, v}, {.seed = 1, .stddev = 2, .dtype = GetParam()}).to(on);
      const Tensor how = bytes_of(draws).to(on);
      Tensor of_texts = tensor_of(ids, {rows * kMaxPages, kPageTokens}).to(on);
      const Tensor table = tensor_of(pages, {rows, kMaxPages}).to(on);
      const Tensor ends = tensor_of(lengths, {rows}).to(on);
      const Tensor last = tensor_of(std::vector<int64_t>(draws.size(), 2), {rows}).to(on);
      const int64_t bytes = kernels::draw_workspace_bytes(rows, v, on);
      Tensor workspace({std::max<int64_t>(bytes, 1)}, DType::kUInt8, on);
      kernels::draw_tokens(tokens.view(), found.view(), logits.view(), how.view(),
                           {of_texts.view(), table.view(), ends.view(), last.view()},
                           workspace.view(), on);
      return std::vector<Tensor>{tokens.to(Stream{}), found.to(Stream{}), of_texts.to(Stream{})};
    };
    const std::vector<Tensor> want = run(Stream{});
    const std::vector<Tensor> got = run(stream());
    const auto as_ints = [](const Tensor& x) {
      const auto all = x.span<int32_t>();
      return std::vector<int32_t>(all.begin(), all.end());
    };
    EXPECT_EQ(as_ints(got[0]), as_ints(want[0]));
    EXPECT_EQ(as_ints(got[2]), as_ints(want[2]));
    const auto* const a =
        static_cast<const kernels::TokenLogProbability*>(std::as_const(got[1]).view().data);
    const auto* const b =
        static_cast<const kernels::TokenLogProbability*>(std::as_const(want[1]).view().data);
    for (int64_t i = 0; i < rows * kernels::kMaxLogProbabilities; ++i) {
      EXPECT_EQ(a[i].token, b[i].token) << v << ", " << i;
      EXPECT_NEAR(a[i].log_probability, b[i].log_probability, 1e-11) << v << ", " << i;
    }
  }
}

TEST_P(DrawCudaTest, PutsTokensIntoTheirPlaces) {
  const Tensor tokens = tensor_of(std::vector<int32_t>{7, 8, 9}, {3});
  const Tensor slots = tensor_of(std::vector<int32_t>{5, 0, 7}, {3});
  expect_twins({zeros({4, 2}, DType::kInt32, Stream{}), tokens, slots},
               [](std::vector<Tensor>& t, Stream on) {
                 kernels::put_ids(t[0].view(), t[1].view(), t[2].view(), on);
               });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DrawCudaTest, kTrainingDtypes, dtype_name);

using DecodeInputsCudaTest = CudaTest;

TEST_F(DecodeInputsCudaTest, TakesTokensFromTheHostAndTheDevice) {
  const std::vector<int32_t> tokens = {5, -1, -3, 0, 9};
  const std::vector<int32_t> lengths = {3, 1, 40, 0, 0};
  const std::vector<int32_t> drawn = {7, 8, -1};
  std::vector<int32_t> changes = {400};  // more than a block has threads
  for (int32_t i = 0; i < 450; ++i) {
    changes.push_back(3 * i);
    changes.push_back(i + 1);
  }
  const std::vector<Tensor> tensors = {zeros({1, 5}, DType::kInt64, Stream{}),
                                       zeros({1, 5}, DType::kInt64, Stream{}),
                                       zeros({1400}, DType::kInt32, Stream{}),
                                       tensor_of(tokens, {5}),
                                       tensor_of(lengths, {5}),
                                       tensor_of(drawn, {3}),
                                       tensor_of(changes, {901})};
  expect_twins(tensors, [](std::vector<Tensor>& t, Stream stream) {
    kernels::decode_inputs(t[0].view(), t[1].view(), t[2].view(), t[3].view(), t[4].view(),
                           t[5].view(), t[6].view(), stream);
  });
}

}  // namespace
}  // namespace megatron
