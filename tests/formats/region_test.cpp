#include "megatron/formats/region.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <random>
#include <vector>

namespace megatron {
namespace {

// The elements of a region of a tensor whose element (i, j, k) is its row-major position.
std::vector<int32_t> elements(const Region& region, const Shape& whole) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < region.shape[0]; ++i) {
    for (int64_t j = 0; j < region.shape[1]; ++j) {
      for (int64_t k = 0; k < region.shape[2]; ++k) {
        const int64_t row = (i + region.offset[0]) * whole[1] + j + region.offset[1];
        values.push_back(static_cast<int32_t>(row * whole[2] + k + region.offset[2]));
      }
    }
  }
  return values;
}

TEST(RegionTest, CopiesExactlyTheSharedElements) {
  const Shape whole = {4, 5, 6};
  std::mt19937 random(7);
  const auto random_region = [&] {
    Region region;
    std::vector<int64_t> extents;
    for (const int64_t extent : whole.dims()) {
      // Whole axes are frequent, as in real shards.
      const bool is_whole = random() % 3 == 0;
      const int64_t begin = is_whole ? 0 : static_cast<int64_t>(random()) % extent;
      const int64_t size =
          is_whole ? extent : 1 + static_cast<int64_t>(random()) % (extent - begin);
      region.offset.push_back(begin);
      extents.push_back(size);
    }
    region.shape = Shape(extents);
    return region;
  };
  for (int round = 0; round < 2000; ++round) {
    const Region to_region = random_region();
    const Region from_region = random_region();
    const std::vector<int32_t> from = elements(from_region, whole);
    const std::vector<int32_t> positions = elements(to_region, whole);
    std::vector<int32_t> to(positions.size(), -1);
    copy_shared(reinterpret_cast<std::byte*>(to.data()), to_region,
                reinterpret_cast<const std::byte*>(from.data()), from_region, 4);
    size_t shared = 0;
    for (size_t i = 0; i < to.size(); ++i) {
      const bool is_shared = std::ranges::find(from, positions[i]) != from.end();
      ASSERT_EQ(to[i], is_shared ? positions[i] : -1);
      shared += is_shared ? 1 : 0;
    }
    ASSERT_EQ(shared > 0, intersects(to_region, from_region));
  }
}

TEST(RegionTest, CopiesScalarsAndNothing) {
  const int32_t from = 5;
  int32_t to = 0;
  copy_shared(reinterpret_cast<std::byte*>(&to), {{}, {}},
              reinterpret_cast<const std::byte*>(&from), {{}, {}}, 4);
  EXPECT_EQ(to, 5);
  copy_shared(nullptr, {{0, 0}, {0, 4}}, nullptr, {{0, 0}, {0, 4}}, 4);
}

TEST(RegionTest, KnowsWhatIsInside) {
  const Shape whole = {4, 6};
  EXPECT_TRUE(is_inside({{0, 0}, {4, 6}}, whole));
  EXPECT_TRUE(is_inside({{4, 0}, {0, 6}}, whole));
  EXPECT_FALSE(is_inside({{1, 0}, {4, 6}}, whole));
  EXPECT_FALSE(is_inside({{-1, 0}, {2, 6}}, whole));
  EXPECT_FALSE(is_inside({{0}, {4}}, whole));
  EXPECT_FALSE(is_inside({{INT64_MAX, 0}, {INT64_MAX, 6}}, whole));
  EXPECT_EQ((Region{{1, 2}, {3, 4}}).str(), "[1, 4) x [2, 6)");
  EXPECT_EQ(Region().str(), "a scalar");
}

}  // namespace
}  // namespace megatron
