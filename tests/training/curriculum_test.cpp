#include "megatron/training/curriculum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CurriculumConfig root(int64_t least, int64_t most, int64_t iterations, int64_t step,
                      double degree) {
  return {.schedule = CurriculumSchedule::kRoot,
          .min_length = least,
          .max_length = most,
          .num_iterations = iterations,
          .length_step = step,
          .degree = degree,
          .lengths = {},
          .last_iterations = {}};
}

CurriculumConfig discrete(std::vector<int64_t> lengths, std::vector<int64_t> last_iterations) {
  CurriculumConfig config;
  config.schedule = CurriculumSchedule::kDiscrete;
  config.lengths = std::move(lengths);
  config.last_iterations = std::move(last_iterations);
  return config;
}

// The formula of the header, for each iteration on its own.
int64_t length_of(const CurriculumConfig& c, int64_t t) {
  const double done = std::pow(double(t) / double(c.num_iterations), 1 / c.degree);
  const auto f = static_cast<int64_t>(
      std::floor(done * double(c.max_length - c.min_length) + double(c.min_length)));
  return std::min(f - f % c.length_step, c.max_length);
}

TEST(CurriculumTest, LengthsAreThoseOfTheFormula) {
  for (const CurriculumConfig& config :
       {root(8, 128, 30, 4, 1), root(8, 130, 30, 4, 1), root(16, 16, 5, 8, 1),
        root(10, 10, 5, 4, 1), root(8, 64, 100, 8, 2), root(9, 63, 50, 3, 0.5), root(1, 7, 1, 1, 1),
        root(64, 2048, 40, 1, 3)}) {
    ASSERT_THAT(problems(config, 4096, 1), IsEmpty());
    const Curriculum curriculum(config);
    int64_t tokens = 0;
    for (int64_t t = 1; t <= 300; ++t) {
      EXPECT_EQ(curriculum.length_at(t), length_of(config, t)) << t;
      tokens += length_of(config, t);
      EXPECT_EQ(curriculum.tokens_after(t), tokens);
      EXPECT_EQ(curriculum.iterations_of(tokens), t);
      EXPECT_EQ(curriculum.iterations_of(tokens + 1), t + 1);
    }
  }
}

TEST(CurriculumTest, DiscreteLengthsHoldUpToTheirLastIterations) {
  const Curriculum curriculum(discrete({8, 64, 128}, {2, 4}));
  std::vector<int64_t> lengths;
  for (int64_t t = 1; t <= 6; ++t) lengths.push_back(curriculum.length_at(t));
  EXPECT_THAT(lengths, ElementsAre(8, 8, 64, 64, 128, 128));
  EXPECT_EQ(curriculum.tokens_after(0), 0);
  EXPECT_EQ(curriculum.tokens_after(5), 272);
  EXPECT_EQ(curriculum.iterations_of(0), 0);
  EXPECT_EQ(curriculum.iterations_of(17), 3);
  EXPECT_EQ(Curriculum(discrete({32}, {})).length_at(1000), 32);
}

TEST(CurriculumTest, FaultsHaveSentences) {
  EXPECT_THAT(problems(CurriculumConfig{}, 8, 2), IsEmpty());  // off
  EXPECT_THAT(problems(root(8, 128, 0, 4, 1), 128, 1),
              ElementsAre(HasSubstr("total_curriculum_step 0 must be at least 1")));
  EXPECT_THAT(problems(root(8, 128, 5, 16, 1), 128, 1),
              ElementsAre(HasSubstr("difficulty_step 16 must be between 1 and min_difficulty 8")));
  EXPECT_THAT(problems(root(8, 128, 5, 8, 0), 128, 1),
              ElementsAre(HasSubstr("root_degree 0 must be above 0")));
  EXPECT_THAT(problems(root(8, 4, 5, 8, 1), 128, 1),
              ElementsAre(HasSubstr("min_difficulty 8 and max_difficulty 4 must be lengths")));
  EXPECT_THAT(problems(root(8, 128, 5, 8, 1), 64, 1),
              ElementsAre(HasSubstr("the greatest length 128 must not exceed --seq-length 64")));
  EXPECT_THAT(problems(root(8, 128, 5, 2, 1), 128, 4),
              ElementsAre(HasSubstr("2 is not a multiple of 4, into which ranks divide")));
  for (const CurriculumConfig& wrong :
       {discrete({}, {}), discrete({8, 16}, {}), discrete({16, 8}, {3}), discrete({8, 8}, {3}),
        discrete({8, 16, 32}, {4, 3}), discrete({0, 8}, {3})}) {
    EXPECT_THAT(problems(wrong, 128, 1), ElementsAre(HasSubstr("must be rising lengths")));
  }
}

}  // namespace
}  // namespace megatron
