#include "megatron/tasks/zero_shot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "megatron/core/error.h"
#include "megatron/inference/generate.h"
#include "tests/inference/tiny_gpt.h"

namespace megatron {
namespace {

std::vector<int32_t> text(int64_t length, int32_t step) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((i * i * step + 3) % 37));
  return ids;
}

// score() runs each text by itself.
TEST(ZeroShotTest, LossesAreThoseOfSingleTexts) {
  const auto gpt = tiny_gpt();
  const InferenceModel model{*gpt};
  const std::vector<TextRow> rows = {{text(20, 3), 1}, {text(7, 5), 4}, {text(13, 7), 12}};
  double want = 0;
  for (const TextRow& row : rows) {
    const Score alone = score(model, row.ids);
    for (size_t i = static_cast<size_t>(row.first_label) - 1; i < alone.log_probabilities.size();
         ++i) {
      want -= alone.log_probabilities[i];
    }
  }
  for (const int64_t at_once : {1, 2, 3, 8}) {
    EXPECT_NEAR(sum_of_losses(model, rows, {at_once}), want, 1e-4) << at_once;
  }
}

TEST(ZeroShotTest, PredictedRowsAreThoseThatGreedySearchGives) {
  const auto gpt = tiny_gpt();
  const InferenceModel model{*gpt};
  std::vector<TextRow> rows;
  for (int32_t i = 1; i < 6; ++i) {
    const std::vector<std::vector<int32_t>> prompt = {text(4 + i, i)};
    GenerateOptions options;
    options.max_new_tokens = i;
    options.sampling.top_k = 1;
    rows.push_back({generate(model, prompt, options)[0].tokens, 4 + i});
  }
  for (const int64_t at_once : {1, 4, 16}) {
    EXPECT_EQ(num_rows_predicted(model, rows, {at_once}), 5) << at_once;
  }
  rows[1].ids.back() = (rows[1].ids.back() + 1) % 37;
  rows[3].ids[static_cast<size_t>(rows[3].first_label)] ^= 1;
  EXPECT_EQ(num_rows_predicted(model, rows, {4}), 3);
}

// Greedy search draws from the same 16-bit logits.
TEST(ZeroShotTest, ModelsIn16BitsPredictTheirGreedySearch) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const auto gpt = tiny_gpt(PositionEmbedding::kLearnedAbsolute, {}, dtype);
    const InferenceModel model{*gpt};
    std::vector<TextRow> rows;
    for (int32_t i = 1; i < 4; ++i) {
      const std::vector<std::vector<int32_t>> prompt = {text(6, i)};
      GenerateOptions options;
      options.max_new_tokens = 1;
      options.sampling.top_k = 1;
      rows.push_back({generate(model, prompt, options)[0].tokens, 6});
    }
    EXPECT_EQ(num_rows_predicted(model, rows, {1}), 3) << name_of(dtype);
    rows[1].ids.back() = (rows[1].ids.back() + 1) % 37;
    EXPECT_EQ(num_rows_predicted(model, rows, {1}), 2) << name_of(dtype);
  }
}

TEST(ZeroShotTest, NumbersThatAreNoneAreNoPrediction) {
  const auto gpt = tiny_gpt();
  Variable words = named_parameters(*gpt).front().variable;
  std::ranges::fill(words.mutable_data().span<float>(), std::nanf(""));
  const std::vector<TextRow> rows = {{text(7, 5), 4}};
  EXPECT_THROW(num_rows_predicted({*gpt}, rows, {1}), Error);
}

TEST(ZeroShotTest, TellsProgress) {
  const auto gpt = tiny_gpt();
  std::vector<int64_t> batches;
  std::vector<size_t> done;
  std::vector<double> results;
  const std::vector<TextRow> rows(5, TextRow{text(4, 1), 1});
  const auto note = [&](int64_t batch, std::span<const TextRow> rows_before, double result) {
    batches.push_back(batch);
    done.push_back(rows_before.size());
    results.push_back(result);
  };
  const double sum = sum_of_losses({*gpt}, rows, {2, note});
  EXPECT_EQ(batches, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(done, (std::vector<size_t>{0, 2, 4}));
  EXPECT_EQ(results[0], 0);
  EXPECT_NEAR(results[2], sum * 4 / 5, 1e-5 * sum);  // equal rows
}

TEST(ZeroShotTest, RefusesWhatTheModelCannotRead) {
  const auto gpt = tiny_gpt();
  const InferenceModel model{*gpt};
  EXPECT_THROW(sum_of_losses(model, std::vector<TextRow>{{text(66, 1), 1}}, {1}), ConfigError);
  EXPECT_THROW(sum_of_losses(model, std::vector<TextRow>{{{3, 37}, 1}}, {1}), ConfigError);
}

}  // namespace
}  // namespace megatron
