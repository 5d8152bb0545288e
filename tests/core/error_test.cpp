#include "megatron/core/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace megatron {
namespace {

TEST(ConfigErrorTest, HasALineForEachProblem) {
  EXPECT_STREQ(ConfigError(std::vector<std::string>{"one", "two"}).what(), "one\ntwo");
}

TEST(ConfigErrorTest, ShowsTheFirstOfVeryManyProblems) {
  std::vector<std::string> problems;
  for (int i = 0; i < 1000; ++i) problems.push_back("problem " + std::to_string(i));
  const std::string text = ConfigError(problems).what();
  EXPECT_TRUE(text.ends_with("\nproblem 49\nand 950 more of this kind")) << text;
}

TEST(ConfigErrorTest, ShowsTheBeginningOfAVeryLongProblem) {
  const std::vector<std::string> problems = {std::string(1'000'000, 'x'), "short"};
  EXPECT_EQ(ConfigError(problems).what(), std::string(4000, 'x') + " ...\nshort");
}

}  // namespace
}  // namespace megatron
