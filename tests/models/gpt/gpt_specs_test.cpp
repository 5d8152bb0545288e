// What gpt_specs() says against models that have memory, in every layout.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/plan/training_plan.h"
#include "tests/models/gpt/small_config.h"

namespace megatron {
namespace {

std::vector<TransformerConfig> variants() {
  TransformerConfig gpt = small_config(2);
  TransformerConfig llama = small_config(2);
  llama.normalization = Normalization::kRmsNorm;
  llama.position_embedding_type = PositionEmbedding::kRope;
  llama.activation = Activation::kSwiglu;
  llama.add_bias_linear = false;
  llama.untie_embeddings_and_output_weights = true;
  TransformerConfig bloom = small_config(2);
  bloom.position_embedding_type = PositionEmbedding::kAlibi;
  bloom.embed_layernorm = true;
  TransformerConfig normed_heads = small_config(2);
  normed_heads.qk_layernorm = true;
  return {resolved(gpt), resolved(llama), resolved(bloom), resolved(normed_heads)};
}

std::vector<ModelChunk> chunks_of(int64_t num_layers) {
  return {whole_model(num_layers),
          {.first_layer = 0, .num_layers = 1, .has_embedding = true, .has_head = false},
          {.first_layer = 1, .num_layers = 0, .has_embedding = false, .has_head = false},
          {.first_layer = 1, .num_layers = 1, .has_embedding = false, .has_head = true}};
}

TEST(GptSpecsTest, AreThoseOfAModelWithMemoryOnEveryRank) {
  for (const TransformerConfig& config : variants()) {
    for (const ModelChunk& chunk : chunks_of(config.num_layers)) {
      const std::vector<Parameter> described = gpt_specs(config, chunk);
      for (const int ranks : {1, 2}) {
        comm::run_ranks(ranks, [&](const comm::Group& group) {
          const GptModel model(config, chunk, {.group = group}, Stream{});
          const std::vector<Parameter> tensors = named_tensors(model);
          ASSERT_EQ(tensors.size(), described.size());
          for (size_t i = 0; i < described.size(); ++i) {
            const Parameter& spec = described[i];
            EXPECT_EQ(spec.name, tensors[i].name);
            EXPECT_EQ(spec.shape, tensors[i].whole().shape) << spec.name;
            EXPECT_EQ(spec.dtype, tensors[i].variable.dtype()) << spec.name;
            EXPECT_EQ(spec.info.is_tied, tensors[i].info.is_tied) << spec.name;
            const Sharding sharding = spec.info.sharding.on_rank(group.rank(), group.size());
            EXPECT_EQ(sharding.local(spec.shape), tensors[i].variable.shape()) << spec.name;
          }
        });
      }
    }
  }
}

TEST(GptSpecsTest, TiedEmbeddingsHaveOneOriginalAndOneCopy) {
  const TransformerConfig config = variants()[0];
  const auto table = [&](const ModelChunk& chunk) { return gpt_specs(config, chunk).at(0).info; };
  const std::vector<ModelChunk> chunks = chunks_of(config.num_layers);
  EXPECT_FALSE(table(chunks[0]).is_tied);  // nobody else has it
  EXPECT_TRUE(table(chunks[1]).is_tied);
  EXPECT_FALSE(table(chunks[1]).is_copy);
  EXPECT_TRUE(table(chunks[3]).is_tied);
  EXPECT_TRUE(table(chunks[3]).is_copy);
  EXPECT_TRUE(table(chunks[3]).has_vocabulary_rows);

  const std::vector<Parameter> untied = gpt_specs(variants()[1]);
  EXPECT_FALSE(untied.front().info.is_tied);
  EXPECT_EQ(untied.back().name, "output_layer.weight");
  EXPECT_EQ(untied.back().info.role, ParameterRole::kOutputHead);
  EXPECT_TRUE(untied.back().info.has_vocabulary_rows);
}

// --decoupled-lr is for the embedding, with BLOOM's norm, and for the output layer.
TEST(GptSpecsTest, EmbeddingAndOutputAreMarked) {
  for (const TransformerConfig& config : variants()) {
    for (const Parameter& spec : gpt_specs(config)) {
      EXPECT_EQ(spec.info.is_embedding_or_output, !spec.name.starts_with("decoder.")) << spec.name;
    }
  }
}

// GPT-3's size. Its first parameter alone would be 2.3 GiB.
TEST(GptSpecsTest, ALargeModelNeedsNoMemory) {
  TransformerConfig config = small_config(96);
  config.hidden_size = 12288;
  config.num_attention_heads = 96;
  config.ffn_hidden_size = 0;
  config.kv_channels = 0;
  config.padded_vocab_size = 51200;
  config = resolved(config);
  CachingAllocator& allocator = allocator_of(Device{});
  allocator.reset_peaks();
  const int64_t before = allocator.stats().allocated_bytes;
  int64_t elements = 0;
  for (const Parameter& spec : gpt_specs(config)) elements += spec.shape.numel();
  EXPECT_GT(elements, 174'000'000'000);
  EXPECT_EQ(elements, num_model_parameters(config));
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, before);
}

}  // namespace
}  // namespace megatron
