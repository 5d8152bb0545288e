#include "megatron/parallel/rank_grid.h"

#include <gmock/gmock.h>

namespace megatron {
namespace {

using testing::ElementsAre;

ParallelConfig rank_grid_config(int64_t world, int64_t tp, int64_t pp, int64_t cp = 1) {
  ParallelConfig config;
  config.world_size = world;
  config.tensor_model_parallel_size = tp;
  config.pipeline_model_parallel_size = pp;
  config.context_parallel_size = cp;
  return resolved(config);
}

TEST(RankGridTest, HasTheGroupsOfMegatron) {
  const RankGrid grid(rank_grid_config(16, 2, 4));
  EXPECT_THAT(grid.group_of(3, {.tensor = true}), ElementsAre(2, 3));
  EXPECT_THAT(grid.group_of(2, {.data = true}), ElementsAre(0, 2));
  EXPECT_THAT(grid.group_of(7, {.data = true}), ElementsAre(5, 7));
  EXPECT_THAT(grid.group_of(9, {.pipeline = true}), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(grid.group_of(6, {.pipeline = true}), ElementsAre(2, 6, 10, 14));
  EXPECT_THAT(grid.group_of(0, {.tensor = true, .pipeline = true}),
              ElementsAre(0, 1, 4, 5, 8, 9, 12, 13));
}

TEST(RankGridTest, PutsContextBetweenTensorAndData) {
  const RankGrid grid(rank_grid_config(16, 2, 2, 2));
  EXPECT_THAT(grid.group_of(0, {.context = true}), ElementsAre(0, 2));
  EXPECT_THAT(grid.group_of(0, {.data = true}), ElementsAre(0, 4));
  EXPECT_THAT(grid.group_of(0, {.context = true, .data = true}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(grid.group_of(0, {.pipeline = true}), ElementsAre(0, 8));
}

TEST(RankGridTest, TheOtherOrderPutsPipelineBeforeData) {
  ParallelConfig other = rank_grid_config(16, 2, 4);
  other.use_tp_pp_dp_mapping = true;
  const RankGrid grid(other);
  EXPECT_THAT(grid.group_of(0, {.pipeline = true}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(grid.group_of(0, {.data = true}), ElementsAre(0, 8));
}

TEST(RankGridTest, PlacesAndRanksAreInverse) {
  for (const bool other_order : {false, true}) {
    ParallelConfig c = rank_grid_config(24, 2, 3, 2);
    c.use_tp_pp_dp_mapping = other_order;
    const RankGrid grid(c);
    for (int rank = 0; rank < grid.size(); ++rank) {
      EXPECT_EQ(grid.rank_of(grid.place_of(rank)), rank);
    }
  }
}

}  // namespace
}  // namespace megatron
