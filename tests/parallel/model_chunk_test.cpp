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

ParallelConfig with_layout(int64_t pp, const std::string& word) {
  ParallelConfig c = config(pp);
  c.pipeline_model_parallel_layout = word;
  return c;
}

TEST(ModelChunkTest, AWordListsTheLayersOfEveryStage) {
  EXPECT_THAT(sizes(with_layout(2, "Et|tttL"), 4), ElementsAre(1, 3));
  EXPECT_THAT(sizes(with_layout(4, "Et*3|(tt|)*2L"), 7), ElementsAre(3, 2, 2, 0));
  EXPECT_THAT(sizes(with_layout(2, "E|(t|t,t|)*2||L"), 6), ElementsAre(0, 1, 2, 1, 2, 0, 0, 0));
  EXPECT_THAT(sizes(with_layout(1, "Et*2L"), 2), ElementsAre(2));
  EXPECT_THAT(model_chunks(with_layout(2, "Ett|t|t|L"), 4, 1),
              ElementsAre(ModelChunk{2, 1, false, false}, ModelChunk{4, 0, false, true}));
  EXPECT_THAT(pipeline_problems(with_layout(2, "Et|tm*2L"), 2, 2), IsEmpty());
}

TEST(ModelChunkTest, AWordDividesLayers) {
  const auto chunks_of = [](const std::string& word, int stage) {
    EXPECT_THAT(pipeline_problems(with_layout(2, word), 3), IsEmpty());
    return model_chunks(with_layout(2, word), 3, stage);
  };
  EXPECT_THAT(chunks_of("Eta|ftL", 0), ElementsAre(ModelChunk{0, 2, true, false, false, true}));
  EXPECT_THAT(chunks_of("Eta|ftL", 1), ElementsAre(ModelChunk{1, 2, false, true, true, false}));
  EXPECT_THAT(chunks_of("Eta|fa|f|L", 1), ElementsAre(ModelChunk{1, 2, false, false, true, true},
                                                      ModelChunk{3, 0, false, true}));
  EXPECT_THAT(chunks_of("Ea|fta||fL", 0), ElementsAre(ModelChunk{0, 1, true, false, false, true},
                                                      ModelChunk{3, 0, false, false}));
  EXPECT_THAT(chunks_of("Etaf|afL", 1), ElementsAre(ModelChunk{2, 1, false, true}));
  for (const char* word : {"Ea|tfL", "Eta|tL", "Ett|faL", "Eft|taL", "Ett|afaL", "Eaa|fftL"}) {
    EXPECT_THAT(pipeline_problems(with_layout(2, word), 3),
                testing::Contains(HasSubstr("an a must be the last letter of its stage")))
        << word;
  }
}

// Megatron-LM's example for DeepSeek-V3, but for its layer m, which stands alone there.
TEST(ModelChunkTest, AWordListsManyStages) {
  const ParallelConfig c = with_layout(16, "Et*3|(tt|)*29,|mL");
  EXPECT_THAT(pipeline_problems(c, 61, 1), IsEmpty());
  EXPECT_EQ(num_model_chunks(c, 61), 2);
  EXPECT_THAT(model_chunks(c, 61, 14),
              ElementsAre(ModelChunk{29, 2, false, false}, ModelChunk{61, 0, false, false}));
}

TEST(ModelChunkTest, SaysWhatAWordLacks) {
  const auto problems_of = [](const std::string& word) {
    return pipeline_problems(with_layout(2, word), 4);
  };
  EXPECT_THAT(problems_of("Ett|xttL"), ElementsAre(HasSubstr("'x' is none of")));
  EXPECT_THAT(problems_of("Et(t|tt"), ElementsAre(HasSubstr("( without )")));
  EXPECT_THAT(problems_of("Et)*2|ttL"), ElementsAre(HasSubstr(") without (")));
  EXPECT_THAT(problems_of("E(tt)|ttL"), ElementsAre(HasSubstr(") without *n")));
  EXPECT_THAT(problems_of("E((t)*2|)*2L"), ElementsAre(HasSubstr("a group in a group")));
  for (const char* word : {"*2Et|tL", "Et*|tL", "Et*2*2|L", "E(*2t)*2|L", "Et*-2|L"}) {
    EXPECT_THAT(problems_of(word), ElementsAre(HasSubstr("* must stand between"))) << word;
  }
  EXPECT_THAT(problems_of("Et*1000001|L"), ElementsAre(HasSubstr("too many")));
  EXPECT_THAT(problems_of("tt|ttL"), ElementsAre(HasSubstr("the order must be one E")));
  EXPECT_THAT(problems_of("Ett|LttL"), ElementsAre(HasSubstr("the order must be one E")));
  EXPECT_THAT(problems_of("Et|tL"), ElementsAre(HasSubstr("it has 2 layers t")));
  EXPECT_THAT(problems_of("Ett|ttmL"), ElementsAre(HasSubstr("it has 1 layers m")));
  EXPECT_THAT(problems_of("Ett|t|tL"), ElementsAre(HasSubstr("its 3 stages must be a multiple")));
  EXPECT_THAT(pipeline_problems(with_layout(4, "Ett|tt|m|L"), 4, 1),
              ElementsAre(HasSubstr("only on the stage of the loss")));
  EXPECT_THAT(pipeline_problems(with_layout(1, "Ett|ttL"), 4),
              ElementsAre(HasSubstr("need --pipeline-model-parallel-size above 1")));
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
