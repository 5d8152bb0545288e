#include "megatron/device/staging.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace megatron {
namespace {

TEST(StagingRingTest, CopiesWhateverTheSizeAndTheTurn) {
  StagingRing ring(Device{}, 3);
  for (const int64_t count : {10, 5'000, 0, 20'000, 1, 5'001, 20'000}) {
    std::vector<int32_t> from(static_cast<size_t>(count));
    std::iota(from.begin(), from.end(), static_cast<int32_t>(count));
    std::vector<int32_t> to(from.size(), -1);
    ring.upload(to.data(), from.data(), count * int64_t{sizeof(int32_t)}, Stream{});
    EXPECT_EQ(to, from);
  }
}

TEST(UploadBytesTest, IsDoneOnReturnOnTheCpu) {
  const double from = 1.5;
  double to = 0;
  upload_bytes(&to, &from, sizeof to, Stream{});
  EXPECT_EQ(to, 1.5);
}

}  // namespace
}  // namespace megatron
