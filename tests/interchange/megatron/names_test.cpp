#include "megatron/interchange/megatron/names.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron {
namespace {

constexpr MegatronNaming kNamings[] = {MegatronNaming::kLegacy, MegatronNaming::kLegacyLayerNorm,
                                       MegatronNaming::kLegacyFused, MegatronNaming::kCore,
                                       MegatronNaming::kCoreFused};

TransformerConfig gpt_config() {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.num_attention_heads = 4;
  config.seq_length = 4;
  config.max_position_embeddings = 4;
  config.untie_embeddings_and_output_weights = true;
  config = resolved(config);
  config.padded_vocab_size = 16;
  return config;
}

TEST(MegatronNamesTest, EveryParameterIsFoundUnderEverySpelling) {
  for (const MegatronNaming naming : kNamings) {
    std::set<std::string> theirs;
    for (const TensorSpec& spec : gpt_parameters(gpt_config())) {
      std::optional<int64_t> layer;
      const std::string ours = without_layer(spec.name, layer);
      const std::string name = with_layer(megatron_name(naming, ours), layer.value_or(0));
      EXPECT_TRUE(theirs.insert(name).second) << name;
      const std::optional<MegatronName> found = find_megatron_name(name);
      ASSERT_TRUE(found) << name;
      EXPECT_EQ(found->ours, ours);
      EXPECT_EQ(found->layer, layer);
      EXPECT_FALSE(found->is_tied_copy);
    }
  }
}

TEST(MegatronNamesTest, KnowsOldPaths) {
  const auto ours = [](const char* path) {
    const auto found = find_megatron_name(path);
    return found ? found->ours : "";
  };
  EXPECT_EQ(ours("language_model.transformer.layers.7.attention.query_key_value.weight"),
            "decoder.layers.{i}.self_attention.linear_qkv.weight");
  EXPECT_EQ(ours("transformer.layers.7.post_attention_layernorm.bias"),
            "decoder.layers.{i}.pre_mlp_layernorm.bias");
  EXPECT_EQ(ours("language_model.transformer.final_layernorm.weight"),
            "decoder.final_layernorm.weight");
  EXPECT_EQ(ours("word_embeddings.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(ours("language_model.pooler.dense.weight"), "");
  EXPECT_TRUE(find_megatron_name("word_embeddings_for_head.weight")->is_tied_copy);
  EXPECT_THROW(megatron_name(MegatronNaming::kLegacy,
                             "decoder.layers.{i}.self_attention.q_layernorm.weight"),
               Unsupported);
}

// The parts of all ranks tile the shard and the whole, whatever the number of ranks.
TEST(MegatronNamesTest, PartsTileShardAndWhole) {
  const Shape whole{24, 12};
  for (const ShardKind kind : {ShardKind::kRows, ShardKind::kColumns, ShardKind::kGateUp}) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      std::vector<int> seen(static_cast<size_t>(whole.numel()), 0);
      const Shape shard = shard_shape(kind, whole, ranks);
      EXPECT_EQ(whole_shape(kind, shard, ranks), whole);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t rows = 0;
        for (const ShardPart& part : shard_parts(kind, whole, rank, ranks)) {
          EXPECT_EQ(part.begin, rows);
          rows += part.region.shape[0];
          ASSERT_TRUE(is_inside(part.region, whole));
          for (int64_t r = 0; r < part.region.shape[0]; ++r) {
            for (int64_t c = 0; c < part.region.shape[1]; ++c) {
              ++seen[static_cast<size_t>((part.region.offset[0] + r) * whole[1] +
                                         part.region.offset[1] + c)];
            }
          }
        }
        EXPECT_EQ(rows, shard[0]);
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
    }
  }
  EXPECT_THROW(shard_parts(ShardKind::kRows, whole, 0, 5), ShapeError);
}

// Four heads of three channels on two ranks: row (kind, head, channel) of the whole model has the
// number it has in our order, and lies in the shards where the old formulas say.
TEST(MegatronNamesTest, OldOrdersOfQueriesKeysAndValues) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kChannels = 3;
  constexpr int64_t kRanks = 2;
  const Shape whole{3 * kHeads * kChannels, 5};
  for (const int64_t version : {0, 1}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      constexpr int64_t kLocal = kHeads / kRanks;
      std::vector<int64_t> of_row(static_cast<size_t>(whole[0] / kRanks), -1);
      for (const ShardPart& part : old_qkv_parts(version, whole, rank, kRanks, kHeads, kChannels)) {
        for (int64_t r = 0; r < part.region.shape[0]; ++r) {
          of_row[static_cast<size_t>(part.begin + r)] = part.region.offset[0] + r;
        }
      }
      for (int64_t kind = 0; kind < 3; ++kind) {
        for (int64_t head = 0; head < kLocal; ++head) {
          for (int64_t channel = 0; channel < kChannels; ++channel) {
            const int64_t row = version == 0 ? (kind * kLocal + head) * kChannels + channel
                                             : (head * kChannels + channel) * 3 + kind;
            const int64_t want = ((rank * kLocal + head) * 3 + kind) * kChannels + channel;
            EXPECT_EQ(of_row[static_cast<size_t>(row)], want);
          }
        }
      }
    }
  }
  EXPECT_THROW(old_qkv_parts(0, Shape{35, 5}, 0, 2, 4, 3), ShapeError);
}

}  // namespace
}  // namespace megatron
