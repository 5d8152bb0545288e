#include "megatron/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using Indices = std::vector<int64_t>;

// The first `groups` microbatches one after another, fewer if the sampler ends.
Indices read(const SamplerOptions& options, int groups) {
  const auto sampler = make_sampler(options);
  Indices indices;
  for (int i = 0; i < groups; ++i) {
    const auto group = sampler->next();
    if (!group) break;
    indices.insert(indices.end(), group->indices.begin(), group->indices.end());
  }
  return indices;
}

TEST(SingleSamplerTest, DealsLotsInRankOrder) {
  SamplerOptions options{.num_samples = 17, .micro_batch_size = 2, .data_parallel_size = 4};
  EXPECT_THAT(read(options, 9), ElementsAre(0, 1, 8, 9));  // the last sample fills no lot
  options.data_parallel_rank = 3;
  EXPECT_THAT(read(options, 9), ElementsAre(6, 7, 14, 15));
  options.consumed_samples = 8;
  EXPECT_THAT(read(options, 9), ElementsAre(14, 15));
  options.consumed_samples = 10;  // less than a lot is left
  EXPECT_THAT(read(options, 9), ElementsAre());
}

TEST(SingleSamplerTest, NumbersItsSamples) {
  const auto sampler = make_sampler({.num_samples = 100,
                                     .consumed_samples = 16,
                                     .micro_batch_size = 2,
                                     .data_parallel_rank = 1,
                                     .data_parallel_size = 2});
  EXPECT_EQ(sampler->next()->first_sample, 18);
  EXPECT_EQ(sampler->next()->first_sample, 22);
}

TEST(SamplerTest, NeedsSamples) {
  EXPECT_THROW(make_sampler({.num_samples = 0, .micro_batch_size = 1}), ConfigError);
  EXPECT_THROW(make_sampler({.num_samples = 8, .consumed_samples = 8, .micro_batch_size = 1}),
               ConfigError);
  const SamplerOptions cyclic{.type = DataloaderType::kCyclic, .num_samples = 8};
  SamplerOptions options = cyclic;
  options.micro_batch_size = 9;
  EXPECT_THROW(make_sampler(options), ConfigError);
  options.micro_batch_size = 4;
  options.consumed_samples = 2;
  EXPECT_THROW(make_sampler(options), ConfigError);
}

// torch.randperm(12) with seeds 0 and 1: 8 0 5 9 7 4 2 10 3 1 11 6 and 1 4 6 8 11 0 5 3 2 9 10 7.
TEST(CyclicSamplerTest, StartsANewOrderEachEpoch) {
  const SamplerOptions options{
      .type = DataloaderType::kCyclic, .num_samples = 13, .micro_batch_size = 4};
  EXPECT_THAT(read(options, 4), ElementsAre(8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6, 1, 4, 6, 8));
}

TEST(CyclicSamplerTest, KeepsRanksInTheirParts) {
  SamplerOptions options{.type = DataloaderType::kCyclic,
                         .num_samples = 25,
                         .micro_batch_size = 3,
                         .data_parallel_size = 2};
  EXPECT_THAT(read(options, 2), ElementsAre(8, 0, 5, 9, 7, 4));
  options.data_parallel_rank = 1;
  EXPECT_THAT(read(options, 2), ElementsAre(20, 12, 17, 21, 19, 16));
}

TEST(CyclicSamplerTest, DealsOneOrderWithoutSharding) {
  SamplerOptions options{.type = DataloaderType::kCyclic,
                         .num_samples = 12,
                         .micro_batch_size = 3,
                         .data_parallel_size = 2,
                         .data_sharding = false};
  EXPECT_THAT(read(options, 2), ElementsAre(8, 5, 7, 2, 3, 11));
  options.data_parallel_rank = 1;
  EXPECT_THAT(read(options, 2), ElementsAre(0, 9, 4, 10, 1, 6));
}

// Parameter: the loader type and whether ranks keep to their parts.
class ResumeTest : public testing::TestWithParam<std::pair<DataloaderType, bool>> {};

TEST_P(ResumeTest, ContinuesWhereItStopped) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    SamplerOptions options{.type = GetParam().first,
                           .num_samples = 50,
                           .micro_batch_size = 2,
                           .data_parallel_rank = rank,
                           .data_parallel_size = 3,
                           .data_sharding = GetParam().second};
    const Indices all = read(options, 20);
    for (size_t lots = 0; 2 * lots < all.size(); ++lots) {
      options.consumed_samples = static_cast<int64_t>(lots) * 6;
      const Indices rest = read(options, 20 - static_cast<int>(lots));
      EXPECT_EQ(rest, Indices(all.begin() + static_cast<std::ptrdiff_t>(2 * lots), all.end()));
    }
  }
}

TEST_P(ResumeTest, RanksShareAnEpochWithoutOverlap) {
  std::multiset<int64_t> seen;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Indices part = read({.type = GetParam().first,
                               .num_samples = 50,
                               .micro_batch_size = 2,
                               .data_parallel_rank = rank,
                               .data_parallel_size = 3,
                               .data_sharding = GetParam().second},
                              8);
    seen.insert(part.begin(), part.end());
  }
  EXPECT_EQ(seen.size(), 48U);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 48U);
}

INSTANTIATE_TEST_SUITE_P(Orders, ResumeTest,
                         testing::Values(std::pair{DataloaderType::kSingle, true},
                                         std::pair{DataloaderType::kCyclic, true},
                                         std::pair{DataloaderType::kCyclic, false}));

}  // namespace
}  // namespace megatron
