#include "megatron/kernels/algorithm_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace megatron::kernels {
namespace {

TEST(AlgorithmChoice, TheFirstOfferStaysUnlessItIsBeatenClearly) {
  constexpr double kRefused = std::numeric_limits<double>::infinity();
  EXPECT_EQ(fastest(std::array{1.0, 2.0, 0.5}), 2u);
  EXPECT_EQ(fastest(std::array{1.0, 0.995, 2.0}), 0u);
  EXPECT_EQ(fastest(std::array{kRefused, 2.0, 1.0}), 2u);
  EXPECT_EQ(fastest(std::array{1.0}), 0u);
}

// The file decides: what was measured once is not measured again, by this process or another.
TEST(AlgorithmChoice, IsMeasuredOnce) {
  const TemporaryDirectory directory;
  const std::vector<std::string> names = {"first", "second", "third"};
  int num_measured = 0;
  const auto measure = [&] {
    ++num_measured;
    return std::vector<double>{3, 1, 2};
  };
  ChoiceFile file(directory.path() / "choices.txt");
  EXPECT_EQ(measured_choice(file, "q", names, measure), 1u);
  EXPECT_EQ(measured_choice(file, "q", names, measure), 1u);
  ChoiceFile again(directory.path() / "choices.txt");
  EXPECT_EQ(measured_choice(again, "q", names, measure), 1u);
  EXPECT_EQ(num_measured, 1);
  EXPECT_EQ(measured_choice(again, "another", names, measure), 1u);
  EXPECT_EQ(num_measured, 2);
  // The library orders its offers in another way, or has lost the one that was chosen.
  EXPECT_EQ(
      measured_choice(file, "q", std::vector<std::string>{"third", "first", "second"}, measure),
      2u);
  EXPECT_EQ(measured_choice(file, "q", std::vector<std::string>{"third", "first"}, measure), 0u);
  EXPECT_EQ(num_measured, 2);
}

// Ranks that measure at the same time agree, though their times differ.
TEST(AlgorithmChoice, TheFirstAnswerStands) {
  const TemporaryDirectory directory;
  const std::vector<std::string> names = {"first", "second"};
  ChoiceFile mine(directory.path() / "choices.txt");
  ChoiceFile theirs(directory.path() / "choices.txt");
  EXPECT_EQ(measured_choice(mine, "q", names, [] { return std::vector<double>{2, 1}; }), 1u);
  EXPECT_EQ(measured_choice(theirs, "q", names, [] { return std::vector<double>{1, 2}; }), 1u);
}

}  // namespace
}  // namespace megatron::kernels
