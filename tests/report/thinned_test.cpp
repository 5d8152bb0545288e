#include "megatron/report/thinned.h"

#include <gmock/gmock.h>

#include <cmath>

namespace megatron::report {
namespace {

std::vector<int64_t> iterations_of(const std::vector<Point>& points) {
  std::vector<int64_t> iterations;
  iterations.reserve(points.size());
  for (const Point& point : points) iterations.push_back(point.iteration);
  return iterations;
}

TEST(ThinnedTest, KeepsAFewPointsAsTheyAre) {
  const std::vector<Point> points = {{1, 5}, {2, 4}, {7, 3}};
  EXPECT_EQ(iterations_of(thinned(points, 5)), (std::vector<int64_t>{1, 2, 7}));
  EXPECT_TRUE(thinned({}, 5).empty());
}

TEST(ThinnedTest, KeepsTheEndsAndTheExtremesOfEachRange) {
  // Two ranges: iterations 0 to 4 and 5 to 9.
  const std::vector<Point> points = {{0, 1}, {1, 3}, {2, 9}, {3, 2}, {4, 4},
                                     {5, 5}, {6, 8}, {7, 0}, {8, 6}, {9, 7}};
  EXPECT_EQ(iterations_of(thinned(points, 8)), (std::vector<int64_t>{0, 2, 3, 6, 7, 9}));
}

TEST(ThinnedTest, KeepsTheFirstValueOfARangeThatIsNotFinite) {
  std::vector<Point> points;
  for (int64_t i = 0; i < 100; ++i) points.push_back({i, static_cast<double>(i)});
  points[40].value = points[41].value = std::nan("");
  EXPECT_THAT(iterations_of(thinned(points, 11)),
              testing::ElementsAre(0, 1, 33, 34, 40, 66, 67, 98, 99));
}

TEST(ThinnedTest, NeverKeepsMoreThanAsked) {
  std::vector<Point> points;
  for (int64_t i = 0; i < 1000; ++i) {
    points.push_back({i * i, i % 7 == 0 ? std::nan("") : std::sin(static_cast<double>(i))});
  }
  for (const size_t most : {5u, 6u, 20u, 333u, 999u}) EXPECT_LE(thinned(points, most).size(), most);
}

}  // namespace
}  // namespace megatron::report
