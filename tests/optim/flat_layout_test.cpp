#include "megatron/optim/flat_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;

TEST(FlatLayoutTest, LastParameterComesFirst) {
  const std::vector<FlatItem> items = {{10}, {20}, {30}};
  const FlatLayout layout = flat_layout(items, {.alignment = 1});
  EXPECT_EQ(layout.places[2].begin, 0);
  EXPECT_EQ(layout.places[1].begin, 30);
  EXPECT_EQ(layout.places[0].begin, 50);
  EXPECT_EQ(layout.places[0].end, 60);
  EXPECT_EQ(layout.numel, 60);
  EXPECT_EQ(layout.buckets.size(), 1u);
}

// Four data-parallel ranks; the numbers are worked by hand from the rule.
TEST(FlatLayoutTest, BucketsCloseWhenFullAndAreRoundedUp) {
  const std::vector<FlatItem> items = {{7}, {5}, {40}, {3}, {9}};
  const FlatLayout layout =
      flat_layout(items, {.alignment = 1, .bucket_size = 10, .bucket_alignment = 4});
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_EQ(layout.buckets[0].unpadded_end, 12);  // 9 + 3
  EXPECT_EQ(layout.buckets[0].end, 12);
  EXPECT_EQ(layout.buckets[1].begin, 12);  // 40 alone is large enough but only one parameter
  EXPECT_EQ(layout.buckets[1].unpadded_end, 57);
  EXPECT_EQ(layout.buckets[1].end, 60);
  EXPECT_EQ(layout.buckets[2].begin, 60);
  EXPECT_EQ(layout.buckets[2].unpadded_end, 67);
  EXPECT_EQ(layout.buckets[2].end, 68);
  EXPECT_EQ(layout.places[2].bucket, 1);
  EXPECT_EQ(layout.places[0].begin, 60);
  EXPECT_EQ(layout.numel, 68);
}

TEST(FlatLayoutTest, TiedWeightsHaveTheirOwnBucket) {
  const std::vector<FlatItem> items = {{16, true}, {8}, {4}};
  const FlatLayout layout = flat_layout(items, {.alignment = 1});
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].end, 12);
  EXPECT_EQ(layout.places[0].bucket, 1);
  EXPECT_EQ(layout.places[0].begin, 12);
}

TEST(FlatLayoutTest, PropertiesHoldForEveryOption) {
  std::vector<FlatItem> items;
  for (int64_t i = 0; i < 40; ++i) items.push_back({1 + i * 37 % 101, i % 11 == 0});
  for (const int64_t alignment : {1, 3, 64}) {
    for (const int64_t bucket_size : {0, 50, 500}) {
      for (const int64_t bucket_alignment : {1, 6, 128}) {
        const FlatLayout layout = flat_layout(items, {alignment, bucket_size, bucket_alignment});
        int64_t previous_end = 0;
        for (size_t i = items.size(); i-- > 0;) {
          const FlatPlace& place = layout.places[i];
          const FlatBucket& bucket = layout.buckets[static_cast<size_t>(place.bucket)];
          EXPECT_EQ(place.end - place.begin, items[i].numel);
          EXPECT_EQ(place.begin % alignment, 0);
          EXPECT_GE(place.begin, previous_end);
          EXPECT_GE(place.begin, bucket.begin);
          EXPECT_LE(place.end, bucket.unpadded_end);
          previous_end = place.end;
        }
        int64_t bucket_end = 0;
        for (const FlatBucket& bucket : layout.buckets) {
          EXPECT_EQ(bucket.begin, bucket_end);
          EXPECT_EQ(bucket.end % bucket_alignment, 0);
          bucket_end = bucket.end;
        }
        EXPECT_EQ(layout.numel, bucket_end);
      }
    }
  }
}

TEST(FlatLayoutTest, NothingIsEmpty) {
  const FlatLayout layout = flat_layout({}, {});
  EXPECT_EQ(layout.numel, 0);
  EXPECT_TRUE(layout.buckets.empty());
  EXPECT_TRUE(ranges_of(layout, {}).ends.empty());
}

TEST(FlatRangesTest, NeighboursOfOneGroupAreOneRange) {
  const std::vector<FlatItem> items = {{4}, {8}, {3}, {5}};
  const FlatLayout layout = flat_layout(items, {.alignment = 8});
  const std::vector<int32_t> groups = {0, 1, 1, 0};  // places: 24-28, 16-24, 8-11, 0-5
  const FlatRanges merged = ranges_of(layout, groups);
  EXPECT_THAT(merged.ends, ElementsAre(8, 24, 28));
  EXPECT_THAT(merged.groups, ElementsAre(0, 1, 0));
  const FlatRanges with_padding = ranges_of(layout, groups, 7);
  EXPECT_THAT(with_padding.ends, ElementsAre(5, 8, 11, 16, 24, 28));
  EXPECT_THAT(with_padding.groups, ElementsAre(0, 7, 1, 7, 1, 0));
}

}  // namespace
}  // namespace megatron
