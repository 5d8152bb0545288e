#include "megatron/data/split.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// The edges of the three splits of n elements; -1 where a split is absent.
std::vector<int64_t> edges(const std::string& text, int64_t n) {
  std::vector<int64_t> result;
  for (const auto& bounds : parse_split(text)) {
    const IndexRange range = bounds ? split_range(*bounds, n) : IndexRange{-1, -1};
    result.push_back(range.begin);
    result.push_back(range.end);
  }
  return result;
}

using Edges = std::vector<int64_t>;

TEST(SplitTest, MatchesMegatron) {
  EXPECT_EQ(edges("1,1,1", 10), (Edges{0, 3, 3, 7, 7, 10}));
  EXPECT_EQ(edges("1,1,1", 7), (Edges{0, 2, 2, 5, 5, 7}));
  EXPECT_EQ(edges("969, 30, 1", 1000), (Edges{0, 969, 969, 999, 999, 1000}));
  const SplitMatrix matrix = parse_split("70, 20, 10");
  EXPECT_EQ(matrix[0]->upper, 0.7);
  EXPECT_EQ(matrix[1]->upper, 0.8999999999999999);
  EXPECT_EQ(matrix[2]->upper, 0.9999999999999999);
}

TEST(SplitTest, AnythingSeparatesNumbers) {
  EXPECT_EQ(edges("969/30/1", 1000), edges("969,30,1", 1000));
  EXPECT_EQ(edges("0.5 and .5", 10), (Edges{0, 5, 5, 10, -1, -1}));
}

TEST(SplitTest, MissingPartsAreAbsent) {
  EXPECT_EQ(edges("1", 10), (Edges{0, 10, -1, -1, -1, -1}));
  EXPECT_EQ(edges("0,0,5", 10), (Edges{-1, -1, -1, -1, 0, 10}));
}

TEST(SplitTest, RejectsNonsense) {
  EXPECT_THROW(parse_split("1,2,3,4"), ConfigError);
  EXPECT_THROW(parse_split("0,0,0"), ConfigError);
  EXPECT_THROW(parse_split(""), ConfigError);
  EXPECT_THROW(parse_split("1.2.3"), ConfigError);
  EXPECT_THROW(parse_split("abc"), ConfigError);
  EXPECT_THROW(parse_split("-1,2,3"), ConfigError);
  EXPECT_THROW(parse_split("nan,1,1"), ConfigError);
  EXPECT_THROW(parse_split("1,Infinity,1"), ConfigError);
}

TEST(SplitTest, IntersectsSplitBySplit) {
  const SplitMatrix both = intersection(parse_split("99,1,0"), parse_split("98,2,0"));
  EXPECT_DOUBLE_EQ(both[0]->upper, 0.98);
  EXPECT_DOUBLE_EQ(both[1]->lower, 0.99);
  EXPECT_DOUBLE_EQ(both[1]->upper, 1.0);
  EXPECT_FALSE(both[2]);
  EXPECT_FALSE(intersection(parse_split("1,1"), parse_split("1,0,1"))[1]);
}

}  // namespace
}  // namespace megatron
