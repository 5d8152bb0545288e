#include "megatron/kernels/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::Draw;
using kernels::kMaxLogProbabilities;
using kernels::TokenLogProbability;

constexpr int64_t kVocabulary = 6;
const std::vector<float> kRow = {1.0f, -2.0f, 0.5f, 1.0f, 3.0f, -1.0f};

// Two texts in pages of two tokens, the second one's last token not yet in its page.
struct Texts {
  Tensor ids = tensor_of(std::vector<int32_t>{4, 0, 9, 9, 3, 3, 4, 1}, {4, 2});
  Tensor pages = tensor_of(std::vector<int32_t>{3, 0, 2, 1}, {2, 2});
  Tensor lengths = tensor_of(std::vector<int32_t>{3, 3}, {2});
  Tensor last = tensor_of(std::vector<int64_t>{4, 4}, {2});

  kernels::DrawTexts view(bool puts_last) {
    return {.ids = ids.view(),
            .pages = std::as_const(pages).view(),
            .lengths = std::as_const(lengths).view(),
            .last = puts_last ? std::as_const(last).view() : ConstView{}};
  }
};

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<TokenLogProbability> found;
};

Drawn drawn(const std::vector<Draw>& draws, const kernels::DrawTexts& texts) {
  const auto rows = static_cast<int64_t>(draws.size());
  std::vector<float> logits;
  for (int64_t i = 0; i < rows; ++i) logits.insert(logits.end(), kRow.begin(), kRow.end());
  Drawn result{std::vector<int32_t>(draws.size()),
               std::vector<TokenLogProbability>(draws.size() * kMaxLogProbabilities)};
  const auto bytes = static_cast<int64_t>(kMaxLogProbabilities * sizeof(TokenLogProbability));
  kernels::draw_tokens({result.tokens.data(), {rows}, DType::kInt32},
                       {result.found.data(), {rows, bytes}, DType::kUInt8},
                       {logits.data(), {rows, kVocabulary}, DType::kFloat32},
                       kernels::view_of(draws), texts, {}, Stream{});
  return result;
}

TEST(DrawTest, PenaltiesReadTheTextInItsPages) {
  Texts texts;
  // Texts 4 1 4 and 3 3 4: page 3, then 0; page 2, then 1, whose first place gets the last token.
  Draw greedy{.top_k = 1, .vocab_size = kVocabulary};
  EXPECT_EQ(drawn({greedy, greedy}, texts.view(true)).tokens, (std::vector<int32_t>{4, 4}));
  EXPECT_EQ(texts.ids.span<int32_t>()[2], 4) << "the last token is put into page 1";

  Draw repetition = greedy;
  repetition.repetition_penalty = 4;  // 3 becomes 0.75
  EXPECT_EQ(drawn({repetition, repetition}, texts.view(false)).tokens,
            (std::vector<int32_t>{0, 0}));
  // Tokens behind the prompt alone: 1 and 4 once, or 4 once.
  Draw frequency = greedy;
  frequency.prompt_length = 1;
  frequency.frequency_penalty = 2.5;
  EXPECT_EQ(drawn({frequency, frequency}, texts.view(false)).tokens, (std::vector<int32_t>{0, 0}));
  frequency.prompt_length = 3;
  EXPECT_EQ(drawn({frequency, frequency}, texts.view(false)).tokens, (std::vector<int32_t>{4, 4}));
  // 4 is twice behind the prompt of the first text, once behind that of the second.
  frequency.prompt_length = 0;
  frequency.frequency_penalty = 1.25;
  EXPECT_EQ(drawn({frequency, frequency}, texts.view(false)).tokens, (std::vector<int32_t>{0, 4}));
  Draw presence = frequency;
  presence.frequency_penalty = 0;
  presence.presence_penalty = 1.25;
  EXPECT_EQ(drawn({presence, presence}, texts.view(false)).tokens, (std::vector<int32_t>{4, 4}));
}

TEST(DrawTest, FindsLogProbabilitiesOfTheLogitsBeforePenalties) {
  Texts texts;
  const Draw draw{.repetition_penalty = 4,
                  .top_k = 1,
                  .vocab_size = kVocabulary,
                  .known_size = 5,
                  .num_probabilities = 7};
  const Drawn result = drawn({draw, {.top_k = 1, .vocab_size = kVocabulary}}, texts.view(false));
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) sum += std::exp(static_cast<double>(kRow[i]));
  EXPECT_EQ(result.found[0].token, 0);
  EXPECT_NEAR(result.found[0].log_probability, 1 - std::log(sum), 1e-12);
  const std::vector<int32_t> order = {4, 0, 3, 2, 1, kernels::kNoToken};
  for (size_t i = 0; i < order.size(); ++i) {
    const TokenLogProbability& top = result.found[1 + i];
    EXPECT_EQ(top.token, order[i]);
    if (order[i] < 0) continue;
    EXPECT_NEAR(top.log_probability,
                static_cast<double>(kRow[static_cast<size_t>(order[i])]) - std::log(sum), 1e-12);
  }
  EXPECT_EQ(result.found[kMaxLogProbabilities].token, 0) << "the second row asks for none";
}

TEST(DrawTest, PutsTokensIntoTheirPlaces) {
  Texts texts;
  const Tensor tokens = tensor_of(std::vector<int32_t>{7, 8}, {2});
  const Tensor slots = tensor_of(std::vector<int32_t>{5, 0}, {2});
  kernels::put_ids(texts.ids.view(), tokens.view(), slots.view(), Stream{});
  EXPECT_EQ(texts.ids.span<int32_t>()[5], 7);
  EXPECT_EQ(texts.ids.span<int32_t>()[0], 8);
  EXPECT_EQ(texts.ids.span<int32_t>()[4], 3);
}

}  // namespace
}  // namespace megatron
