#include "megatron/data/index_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_directory.h"

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

TEST(IndexCacheTest, KeepsTheStateOfItsData) {
  const TemporaryDirectory directory;
  const std::filesystem::path data = directory.write("a.idx", "12345");
  const std::filesystem::file_time_type time =
      std::chrono::file_clock::from_sys(std::chrono::sys_seconds(std::chrono::seconds(1700000000)));
  std::filesystem::last_write_time(data, time);
  const auto cache = [&] {
    return IndexCache(directory.path(), "GPTDataset", "{}", Split::kTrain, CacheNaming::kCore05,
                      data);
  };
  ASSERT_TRUE(cache().save([] {}));
  EXPECT_EQ(read_text(directory.path() / "99914b932bd37a50b983c5e7c90ae93b-GPTDataset-data.txt"),
            "a.idx: 5 bytes, crc32c 18d12335, written 1700000000000000000 ns after 1970\n");
  EXPECT_TRUE(cache().holds({}));
  std::filesystem::last_write_time(data, time + std::chrono::milliseconds(1));
  EXPECT_TRUE(cache().holds({}));  // a copy
  directory.write("a.idx", "12346");
  CapturedStderr captured;
  EXPECT_FALSE(cache().holds({}));
  EXPECT_EQ(captured.text(), "warning: " + cache().description_file().string() +
                                 ": the cached index is of another state of " + data.string() +
                                 "; rebuilding it\n");
}

}  // namespace
}  // namespace megatron
