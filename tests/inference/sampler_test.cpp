#include "megatron/inference/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

const std::vector<float> kLogits = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};

// The frequency of each index over a fine grid of uniforms.
std::map<int64_t, double> shares(const SamplingOptions& options) {
  constexpr int kDraws = 100000;
  std::map<int64_t, double> counts;
  for (int i = 0; i < kDraws; ++i) {
    counts[sample(kLogits, options, options.top_p, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  }
  return counts;
}

double softmax(size_t index) {
  double sum = 0;
  for (const double logit : kLogits) sum += std::exp(logit);
  return std::exp(static_cast<double>(kLogits[index])) / sum;
}

TEST(SampleTest, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(sample(kLogits, {.temperature = 5, .top_k = 1}, 0, 0.99), 1);
}

TEST(SampleTest, WithoutFiltersFollowsTheSoftmax) {
  const auto got = shares({});
  for (size_t i = 0; i < kLogits.size(); ++i) {
    EXPECT_NEAR(got.at(static_cast<int64_t>(i)), softmax(i), 1e-4);
  }
}

TEST(SampleTest, TopKKeepsTiesOfTheKth) {
  const auto two = shares({.top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1), 0.5, 1e-4);
  const std::vector<float> tied = {1, 3, 1, 0};
  EXPECT_EQ(sample(tied, {.top_k = 2}, 0, 0.0), 0);  // ties with the second largest compete
  EXPECT_EQ(sample(tied, {.top_k = 2}, 0, 0.999999), 2);
  EXPECT_EQ(sample(tied, {.top_k = 100}, 0, 0.999999), 3);
}

TEST(SampleTest, TopPKeepsTheTokenThatCrosses) {
  // Sorted probabilities: 0.384, 0.384, 0.141, 0.052, 0.019, ...
  EXPECT_EQ(shares({.top_p = 0.1}).size(), 1u);
  EXPECT_EQ(shares({.top_p = 0.5}).size(), 2u);
  EXPECT_EQ(shares({.top_p = 0.9}).size(), 3u);
  EXPECT_EQ(shares({.top_p = 1.0}).size(), 5u);
}

TEST(SampleTest, TemperatureSharpens) {
  const auto cold = shares({.temperature = 0.1});
  EXPECT_NEAR(cold.at(1), 0.5, 1e-3);
  EXPECT_NEAR(cold.at(3), 0.5, 1e-3);
}

TEST(SampleTest, RefusesNan) {
  const std::vector<float> bad = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT([&] { sample(bad, {}, 0, 0.5); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("weights are NaN")));
}

TEST(SampleTest, TopPCountsAmongTheTopK) {
  // The two largest have probability one half each.
  EXPECT_EQ(shares({.top_k = 2, .top_p = 0.4}).size(), 1u);
  EXPECT_EQ(shares({.top_k = 2, .top_p = 0.6}).size(), 2u);
}

TEST(SampleTest, MinPIsAShareOfTheLargest) {
  EXPECT_EQ(shares({.min_p = 0.9}).size(), 2u);
  EXPECT_EQ(shares({.min_p = 0.36}).size(), 3u);  // exp(-1) = 0.3679
  EXPECT_EQ(shares({.min_p = 0.37}).size(), 2u);
}

TEST(AdjustLogitsTest, PenaltiesFollowTheText) {
  const auto adjusted = [](const SamplingOptions& options) {
    std::vector<float> logits = {4, -4, 1, 1, 1};
    const std::vector<int32_t> tokens = {0, 1, 3, 3, 2, 9};  // 9 is beyond the logits
    adjust_logits(logits, options, tokens, 2);
    return logits;
  };
  using testing::ElementsAre;
  EXPECT_THAT(adjusted({}), ElementsAre(4, -4, 1, 1, 1));
  EXPECT_THAT(adjusted({.repetition_penalty = 2}), ElementsAre(2, -8, 0.5, 0.5, 1));
  EXPECT_THAT(adjusted({.presence_penalty = 0.5}), ElementsAre(4, -4, 0.5, 0.5, 1));
  EXPECT_THAT(adjusted({.frequency_penalty = 0.5}), ElementsAre(4, -4, 0.5, 0, 1));
  EXPECT_THAT(adjusted({.logit_bias = {{4, 3.0}, {7, 1.0}}}), ElementsAre(4, -4, 1, 1, 4));
}

TEST(TopPTest, DecaysToItsBound) {
  const SamplingOptions options{.top_p = 0.8, .top_p_decay = 0.5, .top_p_bound = 0.3};
  EXPECT_DOUBLE_EQ(top_p_at(options, 0), 0.8);
  EXPECT_DOUBLE_EQ(top_p_at(options, 1), 0.4);
  EXPECT_DOUBLE_EQ(top_p_at(options, 2), 0.3);
}

TEST(SamplingUniformTest, IsSpreadAndRepeatable) {
  double sum = 0;
  for (int step = 0; step < 10000; ++step) sum += sampling_uniform(1, 0, step);
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_EQ(sampling_uniform(1, 2, 3), sampling_uniform(1, 2, 3));
  EXPECT_NE(sampling_uniform(1, 2, 3), sampling_uniform(1, 3, 2));
  EXPECT_NE(sampling_uniform(1, 2, 3), sampling_uniform(2, 2, 3));
}

TEST(LogProbabilityTest, IsTheLogSoftmax) {
  EXPECT_NEAR(log_probability(kLogits, 2), std::log(softmax(2)), 1e-12);
}

}  // namespace
}  // namespace megatron
