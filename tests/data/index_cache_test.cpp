#include "megatron/data/index_cache.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(IndexCacheTest, AnnouncesAnIndexThatTakesLong) {
  const IndexCache cache("some/cache", "GPTDataset", "{}", Split::kTrain, CacheNaming::kCore05);
  testing::internal::CaptureStdout();
  cache.announce(1'000'000, 12'000'000);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  testing::internal::CaptureStdout();
  cache.announce(400'000'000, 4'800'000'000);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "> ordering 400000000 samples of the train split: about 40 s, 4.8 GB of memory, and as "
            "much on the disk in some/cache; fewer iterations start sooner\n");
}

}  // namespace
}  // namespace megatron
