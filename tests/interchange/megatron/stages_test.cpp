#include "megatron/interchange/megatron/stages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "megatron/interchange/megatron/writer.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kWords = "embedding.word_embeddings.weight";

CheckpointContents t5(int64_t encoder_layers, int64_t decoder_layers) {
  CheckpointContents contents;
  StoredSection& weights = contents.sections[kWeightsSection];
  const auto add_stack = [&](const char* stack, int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      weights[fmt::format("{}.layers.{}.mlp.linear_fc1.weight", stack, i)] = {};
    }
    weights[fmt::format("{}.final_layernorm.weight", stack)] = {};
  };
  add_stack("encoder", encoder_layers);
  add_stack("decoder", decoder_layers);
  weights[kWords] = {};
  weights["output_layer.bias"] = {};
  return contents;
}

// "e0 e1 d0": the layers of each pipeline rank with their numbers in its file.
std::vector<std::string> layers_of_ranks(const CheckpointContents& contents, int64_t ranks) {
  const MegatronStages stages(contents, {.pipeline_model_parallel_size = ranks});
  std::vector<std::string> result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::string here;
    for (const char* stack : {"encoder", "decoder"}) {
      for (int64_t i = 0; i < layers_in(contents, stack); ++i) {
        const std::string name = fmt::format("{}.layers.{}.mlp.linear_fc1.weight", stack, i);
        if (!stages.holds({rank, 0}, name)) continue;
        here += fmt::format("{}{}:{} ", stack[0], i, stages.local_layer({rank, 0}, name, i));
      }
    }
    result.push_back(here);
  }
  return result;
}

std::vector<int64_t> ranks_with(const CheckpointContents& contents, int64_t ranks,
                                const std::string& name) {
  const MegatronStages stages(contents, {.pipeline_model_parallel_size = ranks});
  std::vector<int64_t> result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (stages.holds({rank, 0}, name)) result.push_back(rank);
  }
  return result;
}

TEST(MegatronStages, DivideTheStacksOfAT5) {
  EXPECT_THAT(layers_of_ranks(t5(2, 2), 1), ElementsAre("e0:0 e1:1 d0:0 d1:1 "));
  EXPECT_THAT(layers_of_ranks(t5(2, 2), 2), ElementsAre("e0:0 e1:1 ", "d0:0 d1:1 "));
  EXPECT_THAT(layers_of_ranks(t5(4, 2), 3), ElementsAre("e0:0 e1:1 ", "e2:0 e3:1 ", "d0:0 d1:1 "));
  EXPECT_THAT(layers_of_ranks(t5(1, 3), 4), ElementsAre("e0:0 ", "d0:0 ", "d1:0 ", "d2:0 "));
}

TEST(MegatronStages, PutWhatIsOutsideTheLayersOfAT5) {
  const CheckpointContents contents = t5(4, 4);
  EXPECT_THAT(ranks_with(contents, 4, kWords), ElementsAre(0, 2));
  EXPECT_THAT(ranks_with(contents, 4, "encoder.final_layernorm.weight"), ElementsAre(1));
  EXPECT_THAT(ranks_with(contents, 4, "decoder.final_layernorm.weight"), ElementsAre(3));
  EXPECT_THAT(ranks_with(contents, 4, "output_layer.bias"), ElementsAre(3));
  EXPECT_EQ(MegatronStages(contents, {.pipeline_model_parallel_size = 4}).split_rank(), 2);
  EXPECT_EQ(MegatronStages(contents, {}).split_rank(), 0);
}

TEST(MegatronStages, NamesLayoutsThatAT5CannotHave) {
  const auto first = [](const CheckpointContents& contents, const MegatronLayout& layout) {
    const std::vector<std::string> found = stage_problems(contents, layout);
    return found.empty() ? std::string() : found.front();
  };
  EXPECT_THAT(stage_problems(t5(2, 2), {.pipeline_model_parallel_size = 2}), IsEmpty());
  EXPECT_THAT(first(t5(2, 2), {.pipeline_model_parallel_size = 5}),
              HasSubstr("2 layers of the encoder and 2 of the decoder cannot be divided evenly"));
  EXPECT_THAT(first(t5(2, 2), {.naming = MegatronNaming::kCore, .pipeline_model_parallel_size = 2}),
              HasSubstr("Megatron Core's T5 has one pipeline stage, not 2"));
  EXPECT_THAT(first(t5(4, 4),
                    {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2}),
              HasSubstr("a T5 has no virtual pipeline stages"));
}

}  // namespace
}  // namespace megatron
