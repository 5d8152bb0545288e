#include "megatron/data/data_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace megatron {
namespace {

std::unique_ptr<Sampler> counting(int64_t num_samples) {
  return make_sampler({.num_samples = num_samples, .micro_batch_size = 1});
}

// Parameter: number of worker threads.
class DataLoaderTest : public testing::TestWithParam<int64_t> {};

TEST_P(DataLoaderTest, KeepsTheOrder) {
  DataLoader<std::vector<int64_t>> loader(
      counting(500),
      [](const SampleGroup& group) {
        // Uneven work lets later batches finish first.
        volatile int64_t sink = 0;
        for (int64_t i = 0; i < (group.indices[0] % 7) * 1000; ++i) sink = sink + i;
        return group.indices;
      },
      GetParam());
  for (int64_t k = 0; k < 500; ++k) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->front(), k);
  }
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next());
}

TEST_P(DataLoaderTest, RethrowsAtTheBatchThatFailed) {
  DataLoader<int64_t> loader(
      counting(100),
      [](const SampleGroup& group) {
        if (group.indices[0] == 5) throw std::runtime_error("bad sample");
        return group.indices[0];
      },
      GetParam());
  for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(loader.next(), k);
  EXPECT_THROW(loader.next(), std::runtime_error);
}

class FailingSampler final : public Sampler {
 public:
  std::optional<SampleGroup> next() override { throw std::runtime_error("no order"); }
};

TEST_P(DataLoaderTest, RethrowsWhatTheSamplerThrows) {
  DataLoader<int64_t> loader(
      std::make_unique<FailingSampler>(), [](const SampleGroup&) { return int64_t{0}; },
      GetParam());
  EXPECT_THROW(loader.next(), std::runtime_error);
}

TEST_P(DataLoaderTest, StopsEarly) {
  std::atomic<int64_t> made{0};
  {
    DataLoader<int64_t> loader(
        counting(1'000'000),
        [&](const SampleGroup& group) {
          ++made;
          return group.indices[0];
        },
        GetParam());
    EXPECT_EQ(loader.next(), 0);
  }
  EXPECT_LE(made, 2 * GetParam() + 1);
}

TEST_P(DataLoaderTest, MayBeDroppedUnread) {
  const DataLoader<int64_t> loader(
      counting(100), [](const SampleGroup& group) { return group.indices[0]; }, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Workers, DataLoaderTest, testing::Values(0, 1, 2, 5));

}  // namespace
}  // namespace megatron
