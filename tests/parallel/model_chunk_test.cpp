#include "megatron/parallel/pipeline/model_chunk.h"

#include <gmock/gmock.h>

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ParallelConfig config(int64_t pp) {
  ParallelConfig config;
  config.world_size = pp;
  config.pipeline_model_parallel_size = pp;
  return config;
}

std::vector<int64_t> sizes(const ParallelConfig& c, int64_t layers) {
  EXPECT_THAT(pipeline_problems(c, layers), IsEmpty());
  std::vector<int64_t> all;
  int64_t first = 0;
  for (int64_t chunk = 0; chunk < num_model_chunks(c, layers); ++chunk) {
    for (int stage = 0; stage < c.pipeline_model_parallel_size; ++stage) {
      const ModelChunk part = model_chunks(c, layers, stage)[static_cast<size_t>(chunk)];
      EXPECT_EQ(part.first_layer, first);
      first += part.num_layers;
      all.push_back(part.num_layers);
    }
  }
  EXPECT_EQ(first, layers);
  return all;
}

TEST(ModelChunkTest, OneStageHasTheWholeModel) {
  EXPECT_THAT(model_chunks(config(1), 5, 0), ElementsAre(whole_model(5)));
}

TEST(ModelChunkTest, InterleavedStagesHaveTheLayersOfMegatron) {
  ParallelConfig c = config(4);
  c.num_layers_per_virtual_pipeline_stage = 2;
  EXPECT_THAT(model_chunks(c, 16, 0),
              ElementsAre(ModelChunk{0, 2, true, false}, ModelChunk{8, 2, false, false}));
  EXPECT_THAT(model_chunks(c, 16, 3),
              ElementsAre(ModelChunk{6, 2, false, false}, ModelChunk{14, 2, false, true}));
}

TEST(ModelChunkTest, FirstAndLastStageMayDiffer) {
  ParallelConfig c = config(4);
  EXPECT_THAT(sizes(c, 8), ElementsAre(2, 2, 2, 2));
  c.decoder_first_pipeline_num_layers = 1;
  EXPECT_THAT(sizes(c, 10), ElementsAre(1, 3, 3, 3));
  c.decoder_last_pipeline_num_layers = 3;
  EXPECT_THAT(sizes(c, 8), ElementsAre(1, 2, 2, 3));
}

TEST(ModelChunkTest, EmbeddingAndLossMayCountAsLayers) {
  ParallelConfig c = config(4);
  c.account_for_embedding_in_pipeline_split = true;
  c.account_for_loss_in_pipeline_split = true;
  EXPECT_THAT(sizes(c, 14), ElementsAre(3, 4, 4, 3));
}

TEST(ModelChunkTest, AStandaloneEmbeddingStageHasNoLayers) {
  ParallelConfig c = config(3);
  c.standalone_embedding_stage = true;
  EXPECT_THAT(sizes(c, 8), ElementsAre(0, 4, 4));
}

TEST(ModelChunkTest, SaysWhatDoesNotDivide) {
  EXPECT_THAT(pipeline_problems(config(4), 10),
              ElementsAre(HasSubstr("--num-layers 10 do not divide")));
  ParallelConfig c = config(2);
  c.num_layers_per_virtual_pipeline_stage = 3;
  EXPECT_THAT(pipeline_problems(c, 8), ElementsAre(HasSubstr("not a multiple")));
}

}  // namespace
}  // namespace megatron
