#include "megatron/models/t5/t5_chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "megatron/models/t5/t5_model.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TransformerConfig small_t5() {
  TransformerConfig c;
  c.num_layers = 4;
  c.decoder_num_layers = 2;
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.seq_length = 16;
  c.decoder_seq_length = 8;
  c.max_position_embeddings = 16;
  c.padded_vocab_size = 32;
  return resolved(c);
}

ParallelConfig stages(int64_t count, int64_t split) {
  ParallelConfig c;
  c.pipeline_model_parallel_size = count;
  c.pipeline_model_parallel_split_rank = split;
  return c;
}

TEST(T5ChunkTest, StagesBeforeTheSplitShareTheEncoder) {
  const ParallelConfig parallel = stages(3, 2);
  const T5Chunk first = t5_chunk(parallel, small_t5(), 0);
  EXPECT_EQ(first.encoder.num_layers, 2);
  EXPECT_FALSE(first.encoder.has_end);
  EXPECT_FALSE(first.has_decoder());
  EXPECT_TRUE(first.embeds_encoder && !first.embeds_decoder && !first.has_head);
  const T5Chunk second = t5_chunk(parallel, small_t5(), 1);
  EXPECT_EQ(second.encoder.first_layer, 2);
  EXPECT_TRUE(second.encoder.has_end);
  const T5Chunk last = t5_chunk(parallel, small_t5(), 2);
  EXPECT_FALSE(last.has_encoder());
  EXPECT_EQ(last.decoder.num_layers, 2);
  EXPECT_TRUE(last.decoder.has_end && last.embeds_decoder && last.has_head);
}

// Every parameter of the model has one original; copies are tied to it.
TEST(T5ChunkTest, StagesTogetherAreTheModel) {
  for (const bool is_relative : {false, true}) {
    for (const bool is_untied : {false, true}) {
      TransformerConfig config = small_t5();
      config.untie_embeddings_and_output_weights = is_untied;
      if (is_relative) config.position_embedding_type = PositionEmbedding::kRelative;
      std::map<std::string, int> originals;
      for (int64_t stage = 0; stage < 4; ++stage) {
        for (const Parameter& spec : t5_specs(config, t5_chunk(stages(4, 2), config, stage))) {
          if (!spec.info.is_copy) originals[spec.name] += 1;
          EXPECT_TRUE(spec.info.is_tied || !spec.info.is_copy) << spec.name;
        }
      }
      const std::vector<Parameter> whole = t5_specs(config);
      EXPECT_EQ(originals.size(), whole.size());
      for (const Parameter& spec : whole) EXPECT_EQ(originals[spec.name], 1) << spec.name;
    }
  }
}

TEST(T5ChunkTest, NamesLayoutsThatItHasNot) {
  EXPECT_THAT(t5_pipeline_problems(stages(1, 0), small_t5()), IsEmpty());
  EXPECT_THAT(t5_pipeline_problems(stages(4, 2), small_t5()), IsEmpty());
  const auto problem_of = [](const ParallelConfig& parallel) {
    const std::vector<std::string> problems = t5_pipeline_problems(parallel, small_t5());
    return problems.size() == 1 ? problems.front() : std::string("not one problem");
  };
  EXPECT_THAT(problem_of(stages(2, 0)), HasSubstr("--pipeline-model-parallel-split-rank 0"));
  EXPECT_THAT(problem_of(stages(4, 3)), HasSubstr("--encoder-num-layers 4 must be a multiple of"));
  EXPECT_THAT(problem_of(stages(5, 2)),
              HasSubstr("--decoder-num-layers 2 must be a multiple of the 3 pipeline stages"));
  ParallelConfig interleaved = stages(4, 2);
  interleaved.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_THAT(problem_of(interleaved), HasSubstr("interleaved"));
  ParallelConfig uneven = stages(4, 2);
  uneven.standalone_embedding_stage = true;
  EXPECT_THAT(problem_of(uneven), HasSubstr("--standalone-embedding-stage"));
}

}  // namespace
}  // namespace megatron
