#include "megatron/parallel/mesh.h"

#include <gmock/gmock.h>

#include <set>

#include "megatron/comm/threads.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {
namespace {

using testing::ElementsAre;

ParallelConfig mesh_config(int64_t world, int64_t tp, int64_t pp, int64_t cp = 1) {
  ParallelConfig config;
  config.world_size = world;
  config.tensor_model_parallel_size = tp;
  config.pipeline_model_parallel_size = pp;
  config.context_parallel_size = cp;
  return resolved(config);
}

ParallelConfig with_experts(ParallelConfig config, int64_t ep, int64_t etp = 0) {
  config.expert_model_parallel_size = ep;
  config.expert_tensor_parallel_size = etp;
  return config;
}

TEST(MeshTest, HasTheGroupsOfMegatron) {
  const Mesh mesh(mesh_config(16, 2, 4));
  EXPECT_THAT(mesh.group_of(3, MeshAxis::kTensor), ElementsAre(2, 3));
  EXPECT_THAT(mesh.group_of(2, MeshAxis::kData), ElementsAre(0, 2));
  EXPECT_THAT(mesh.group_of(7, MeshAxis::kData), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group_of(9, MeshAxis::kPipeline), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(mesh.group_of(6, MeshAxis::kPipeline), ElementsAre(2, 6, 10, 14));
  EXPECT_THAT(mesh.group_of(0, {MeshAxis::kTensor, MeshAxis::kPipeline}),
              ElementsAre(0, 1, 4, 5, 8, 9, 12, 13));
}

TEST(MeshTest, PutsContextBetweenTensorAndData) {
  const Mesh mesh(mesh_config(16, 2, 2, 2));
  EXPECT_THAT(mesh.group_of(0, MeshAxis::kContext), ElementsAre(0, 2));
  EXPECT_THAT(mesh.group_of(0, MeshAxis::kData), ElementsAre(0, 4));
  EXPECT_THAT(mesh.group_of(0, {MeshAxis::kContext, MeshAxis::kData}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(mesh.group_of(0, MeshAxis::kPipeline), ElementsAre(0, 8));
}

TEST(MeshTest, TheOtherOrderPutsPipelineBeforeData) {
  ParallelConfig other = mesh_config(16, 2, 4);
  other.use_tp_pp_dp_mapping = true;
  const Mesh mesh(other);
  EXPECT_THAT(mesh.group_of(0, MeshAxis::kPipeline), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(mesh.group_of(0, MeshAxis::kData), ElementsAre(0, 8));
}

// Experts divide the ranks of a stage anew: with as many tensor-parallel ranks, those with other
// experts are consecutive data-parallel ones.
TEST(MeshTest, ExpertsDivideTheSameRanksAnew) {
  const Mesh mesh(with_experts(mesh_config(16, 2, 2), 2));
  EXPECT_EQ(mesh.size(MeshAxis::kExpertTensor), 2);
  EXPECT_EQ(mesh.size(MeshAxis::kExpertData), 2);
  EXPECT_THAT(mesh.group_of(1, MeshAxis::kExpert), ElementsAre(1, 3));
  EXPECT_THAT(mesh.group_of(11, MeshAxis::kExpert), ElementsAre(9, 11));
  EXPECT_THAT(mesh.group_of(3, MeshAxis::kExpertData), ElementsAre(3, 7));
  EXPECT_THAT(mesh.group_of(3, MeshAxis::kPipeline), ElementsAre(3, 11));

  const Mesh undivided(with_experts(mesh_config(8, 2, 1), 4, 1));
  EXPECT_THAT(undivided.group_of(6, MeshAxis::kExpertTensor), ElementsAre(6));
  EXPECT_THAT(undivided.group_of(6, MeshAxis::kExpert), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(undivided.group_of(6, MeshAxis::kExpertData), ElementsAre(2, 6));
  EXPECT_EQ(undivided.size({MeshAxis::kExpert, MeshAxis::kExpertData}), 8);
}

TEST(MeshTest, CoordinatesNameEachRankOnce) {
  constexpr MeshAxis kRows[][5] = {
      {MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kData, MeshAxis::kInstance,
       MeshAxis::kPipeline},
      {MeshAxis::kExpertTensor, MeshAxis::kExpert, MeshAxis::kExpertData, MeshAxis::kInstance,
       MeshAxis::kPipeline}};
  for (const bool other_order : {false, true}) {
    for (const int64_t instances : {1, 2}) {
      ParallelConfig c = with_experts(mesh_config(48, 2, 3, 2), 4, 1);
      c.use_tp_pp_dp_mapping = other_order;
      c.num_distributed_optimizer_instances = instances;
      const Mesh mesh(c);
      for (const auto& row : kRows) {
        std::set<std::vector<int>> seen;
        for (int rank = 0; rank < 48; ++rank) {
          std::vector<int> coordinates;
          for (const MeshAxis axis : row) coordinates.push_back(mesh.coordinate(rank, axis));
          seen.insert(coordinates);
        }
        EXPECT_EQ(seen.size(), 48u);
      }
    }
  }
}

// Megatron Core's parts of a data-parallel group are consecutive: the first half of the ranks of a
// stage is one instance for dense layers and for experts.
TEST(MeshTest, InstancesAreConsecutive) {
  ParallelConfig config = with_experts(mesh_config(32, 2, 2, 2), 2, 2);
  config.num_distributed_optimizer_instances = 2;
  const Mesh mesh(config);
  EXPECT_THAT(mesh.group_of(0, kDenseDataAxes), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
  EXPECT_THAT(mesh.group_of(0, {MeshAxis::kContext, MeshAxis::kData}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(mesh.group_of(10, {MeshAxis::kContext, MeshAxis::kData}), ElementsAre(8, 10, 12, 14));
  EXPECT_THAT(mesh.group_of(3, MeshAxis::kInstance), ElementsAre(3, 11));
  EXPECT_THAT(mesh.group_of(1, kExpertDataAxes), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(mesh.group_of(9, MeshAxis::kExpertData), ElementsAre(9, 13));
  EXPECT_THAT(mesh.group_of(3, MeshAxis::kPipeline), ElementsAre(3, 19));

  ParallelConfig other = mesh_config(16, 2, 2);
  other.use_tp_pp_dp_mapping = true;
  other.num_distributed_optimizer_instances = 2;
  const Mesh pipelines_first(other);
  EXPECT_THAT(pipelines_first.group_of(0, MeshAxis::kData), ElementsAre(0, 4));
  EXPECT_THAT(pipelines_first.group_of(0, MeshAxis::kInstance), ElementsAre(0, 8));
}

TEST(MeshTest, RefusesInstancesThatDoNotFit) {
  const auto problems_of = [](ParallelConfig config, int64_t instances) {
    config.use_distributed_optimizer = instances > 1;
    config.num_distributed_optimizer_instances = instances;
    return problems(resolved(config));
  };
  EXPECT_TRUE(problems_of(with_experts(mesh_config(16, 2, 1), 2), 4).empty());
  EXPECT_THAT(problems_of(mesh_config(16, 2, 1), 3),
              ElementsAre("--num-distributed-optimizer-instances 3 must divide the 8 "
                          "data-parallel ranks"));
  EXPECT_THAT(problems_of(with_experts(mesh_config(16, 2, 1), 4), 4),
              ElementsAre("--num-distributed-optimizer-instances 4 must divide the 2 ranks that "
                          "have the same experts; change --expert-model-parallel-size 4"));
  EXPECT_THAT(problems_of(mesh_config(16, 2, 1), 0),
              ElementsAre("--num-distributed-optimizer-instances 0 must be at least 1"));
}

TEST(MeshTest, RefusesExpertsThatDoNotFit) {
  EXPECT_TRUE(problems(with_experts(mesh_config(16, 2, 2), 4)).empty());
  EXPECT_THAT(problems(with_experts(mesh_config(16, 2, 2), 3)),
              ElementsAre("--expert-model-parallel-size 3 x --expert-tensor-parallel-size 2 must "
                          "divide the 8 ranks of a pipeline stage"));
  ParallelConfig other = with_experts(mesh_config(16, 2, 2), 2);
  other.use_tp_pp_dp_mapping = true;
  EXPECT_THAT(problems(other),
              ElementsAre("--use-tp-pp-dp-mapping needs --expert-model-parallel-size 2 x "
                          "--expert-tensor-parallel-size 2 to be tensor 2 x context 1; leave it "
                          "out"));
}

TEST(ParallelContextTest, FindsGroupsByTheirAxes) {
  comm::run_ranks(8, [](const comm::Group& world) {
    ParallelConfig config = with_experts(mesh_config(8, 2, 1), 2, 1);
    config.num_distributed_optimizer_instances = 2;
    const ParallelContext parallel = make_parallel_context(world, config);
    EXPECT_EQ(parallel.replica(), world.rank() / 2);
    EXPECT_EQ(parallel.num_replicas(), 4);
    for (const MeshAxes axes :
         {MeshAxes(MeshAxis::kTensor), MeshAxes(MeshAxis::kExpert), MeshAxes(MeshAxis::kExpertData),
          MeshAxes(MeshAxis::kPipeline), MeshAxes{MeshAxis::kContext, MeshAxis::kData},
          MeshAxes(MeshAxis::kInstance), kDenseDataAxes, kExpertDataAxes}) {
      const comm::Group group = parallel.group(axes);
      EXPECT_EQ(group.size(), parallel.mesh.size(axes));
      if (group.size() == 1) continue;
      EXPECT_TRUE(
          std::ranges::equal(group.world_ranks(), parallel.mesh.group_of(world.rank(), axes)));
    }
    EXPECT_EQ(parallel.group(MeshAxis::kExpertTensor).size(), 1);
    EXPECT_EQ(parallel.coordinate(MeshAxis::kExpert), world.rank() % 2);
  });
}

}  // namespace
}  // namespace megatron
