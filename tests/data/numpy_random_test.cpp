#include "megatron/data/numpy_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::ElementsAre;

// Every expected number was drawn by numpy 1.24 or torch 1.13.

TEST(NumpyRandomTest, OutputsAreMt19937) {
  NumpyRandom random(1234);
  EXPECT_EQ(random.next(), 822569775U);
  EXPECT_EQ(random.next(), 2137449171U);
  EXPECT_EQ(random.next(), 2671936806U);
  std::mt19937 reference(5489);
  NumpyRandom same(5489);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(same.next(), reference()) << i;
}

TEST(NumpyRandomTest, Shuffles) {
  std::vector<int32_t> values(20);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandom(1234).shuffle(std::span<int32_t>(values));
  EXPECT_THAT(values,
              ElementsAre(3, 13, 2, 16, 14, 5, 4, 0, 8, 18, 17, 11, 10, 9, 7, 1, 19, 12, 6, 15));

  std::vector<uint32_t> six = {0, 1, 2, 3, 4, 5};
  NumpyRandom random(1234);
  random.shuffle(std::span<uint32_t>(six));
  EXPECT_THAT(six, ElementsAre(2, 1, 5, 0, 4, 3));
  std::iota(six.begin(), six.end(), 0U);
  random.shuffle(std::span<uint32_t>(six));
  EXPECT_THAT(six, ElementsAre(0, 4, 3, 2, 5, 1));
}

TEST(NumpyRandomTest, ShuffleDrawsOneIntervalPerElement) {
  std::vector<int64_t> values(1000);
  std::vector<int64_t> want(1000);
  std::iota(values.begin(), values.end(), int64_t{0});
  std::iota(want.begin(), want.end(), int64_t{0});
  NumpyRandom(7).shuffle(std::span<int64_t>(values));
  NumpyRandom random(7);
  for (size_t i = want.size() - 1; i > 0; --i) std::swap(want[i], want[random.interval(i)]);
  EXPECT_EQ(values, want);
}

TEST(NumpyRandomTest, Permutes) {
  EXPECT_THAT(NumpyRandom(1234).permutation(10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
}

TEST(NumpyRandomTest, DrawsDoubles) {
  NumpyRandom random(1234);
  EXPECT_EQ(random.random(), 0.1915194503788923);
  EXPECT_EQ(random.random(), 0.6221087710398319);
  EXPECT_EQ(random.random(), 0.4377277390071145);
  EXPECT_EQ(random.random(), 0.7853585837137692);
  EXPECT_EQ(random.random(), 0.7799758081188035);
}

TEST(NumpyRandomTest, DrawsIntegers) {
  NumpyRandom random(1234);
  std::vector<int64_t> small;
  for (int i = 0; i < 12; ++i) small.push_back(random.randint(1, 10));
  EXPECT_THAT(small, ElementsAre(4, 7, 6, 5, 9, 2, 8, 7, 9, 1, 6, 1));

  random = NumpyRandom(1234);
  std::vector<int64_t> large;
  for (int i = 0; i < 6; ++i) large.push_back(random.randint(0, 50257));
  EXPECT_THAT(large, ElementsAre(27439, 34086, 23924, 17048, 32399, 41239));
}

TEST(NumpyRandomTest, OneChoiceDrawsNothing) {
  NumpyRandom random(1234);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(random.randint(1, 2), 1);
  EXPECT_EQ(random.random(), 0.1915194503788923);
}

TEST(NumpyRandomTest, WideIntervalsTakeTheHighWordFirst) {
  const uint64_t max = (uint64_t{1} << 40) - 1;
  NumpyRandom random(1234);
  EXPECT_EQ(random.interval(max), ((uint64_t{822569775} << 32) | 2137449171U) & max);
}

TEST(NumpyRandomTest, DrawsGeometric) {
  NumpyRandom random(1234);
  std::vector<int64_t> values;
  for (int i = 0; i < 12; ++i) values.push_back(random.geometric(0.2));
  EXPECT_THAT(values, ElementsAre(1, 5, 3, 7, 7, 2, 2, 8, 15, 10, 2, 4));
}

TEST(NumpyRandomTest, ChoosesByProbability) {
  const std::vector<double> p = {6.0 / 11, 3.0 / 11, 2.0 / 11};
  NumpyRandom random(1234);
  std::vector<int64_t> values;
  for (int i = 0; i < 12; ++i) values.push_back(random.choice(p) + 1);
  EXPECT_THAT(values, ElementsAre(1, 2, 1, 2, 2, 1, 1, 2, 3, 3, 1, 1));
}

TEST(NumpySumTest, AddsPairwise) {
  EXPECT_EQ(numpy_sum(std::vector<double>{}), 0.0);
  EXPECT_EQ(numpy_sum(std::vector<double>{0.1, 0.2, 0.3}), (0.1 + 0.2) + 0.3);
  // Eight accumulators add 0.1 to itself exactly; from left to right 0.1 * 8 is not 0.8.
  EXPECT_EQ(numpy_sum(std::vector<double>(8, 0.1)), 0.8);
  std::vector<double> nine(9, 0.1);
  EXPECT_EQ(numpy_sum(nine), 0.8 + 0.1);
  const std::vector<double> many(1000, 0.1);
  EXPECT_NEAR(numpy_sum(many), 100.0, 1e-12);
}

TEST(TorchRandpermTest, MatchesTorch) {
  EXPECT_THAT(torch_randperm(12, 0), ElementsAre(8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6));
  EXPECT_THAT(torch_randperm(12, 1), ElementsAre(1, 4, 6, 8, 11, 0, 5, 3, 2, 9, 10, 7));
  EXPECT_TRUE(torch_randperm(0, 0).empty());
  EXPECT_THROW(torch_randperm(int64_t{1} << 32, 0), Unsupported);
}

TEST(NumpyGeneratorTest, MatchesDefaultRng) {
  std::vector<int64_t> train;
  for (uint64_t i = 0; i < 8; ++i) {
    train.push_back(NumpyGenerator(std::vector<uint64_t>{0, i}).integers(0, 1024));
  }
  EXPECT_THAT(train, ElementsAre(871, 534, 1002, 515, 461, 713, 461, 815));
  std::vector<int64_t> valid;
  for (uint64_t i = 0; i < 4; ++i) {
    valid.push_back(NumpyGenerator(std::vector<uint64_t>{1, i}).integers(0, 1024));
  }
  EXPECT_THAT(valid, ElementsAre(484, 531, 658, 457));
  NumpyGenerator random(std::vector<uint64_t>{0});
  std::vector<int64_t> lengths;
  for (int i = 0; i < 8; ++i) lengths.push_back(random.integers(1, 4096));
  EXPECT_THAT(lengths, ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68));
}

}  // namespace
}  // namespace megatron
