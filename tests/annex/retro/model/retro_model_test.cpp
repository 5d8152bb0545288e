#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "megatron/models/model_specs.h"
#include "megatron/models/retro/retro_model.h"
#include "tests/support/tensors.h"

// A GPT whose layers 2 and 3 attend to neighbours.
namespace megatron {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kRetroModelLength = 10;  // chunks of 2, 4 and 4 tokens
constexpr int64_t kRows = 64;              // of the vocabulary

TransformerConfig gpt_config() {
  TransformerConfig c;
  c.num_layers = 3;
  c.hidden_size = 16;
  c.num_attention_heads = 2;
  c.seq_length = kRetroModelLength;
  c.max_position_embeddings = 16;
  c.padded_vocab_size = kRows;
  c.hidden_dropout = c.attention_dropout = 0;
  c.init_method_std = 0.3;
  return c;
}

TransformerConfig retro_config() {
  TransformerConfig c = gpt_config();
  c.retro = {.add_retriever = true,
             .layer_numbers = {2, 3},
             .chunk_length = 4,
             .encoder_hidden_dropout = 0,
             .encoder_attention_dropout = 0};
  return c;
}

struct SmallModel {
  RetroModel model;
  explicit SmallModel(const TransformerConfig& config) : model(resolved(config), Stream{}) {
    initialize(model, 3);
  }
  Tensor hidden(const Tensor& tokens, const Tensor& neighbors) const {
    RandomState random(1);
    ModelInput input{.tokens = tokens};
    if (neighbors.defined()) input.neighbor_tokens = neighbors;
    return model.hidden_states(input, random).data();
  }
};

Tensor some_tokens() { return random_ids({kBatch, kRetroModelLength}, kRows, 1); }
// [b l k, r]: two neighbours of three chunks.
Tensor some_neighbors() { return random_ids({kBatch * 3 * 2, 8}, kRows, 2); }

std::set<std::string> names_of(const TransformerConfig& config) {
  std::set<std::string> names;
  for (const Parameter& spec : model_specs(resolved(config))) names.insert(spec.name);
  return names;
}

TEST(RetroModelTest, HasTheParametersOfAGptAndItsOwn) {
  const std::set<std::string> gpt = names_of(gpt_config());
  std::set<std::string> own;
  for (const std::string& name : names_of(retro_config())) {
    EXPECT_NE(is_retro_parameter(name), gpt.contains(name)) << name;
    if (!gpt.contains(name)) own.insert(name);
  }
  const auto expect_attention = [&](const std::string& in) {
    for (const char* layer : {"linear_q", "linear_kv", "linear_proj"}) {
      EXPECT_EQ(own.erase(in + layer + ".weight"), 1u) << in << layer;
      EXPECT_EQ(own.erase(in + layer + ".bias"), 1u) << in << layer;
    }
  };
  const auto expect_norm = [&](const std::string& in) {
    EXPECT_EQ(own.erase(in + "pre_cross_attn_layernorm.weight"), 1u) << in;
    EXPECT_EQ(own.erase(in + "pre_cross_attn_layernorm.bias"), 1u) << in;
  };
  expect_attention("decoder.layers.1.cross_attention.attn.");
  expect_attention("decoder.layers.2.cross_attention.attn.");
  expect_norm("decoder.layers.1.");
  expect_norm("decoder.layers.2.");
  const std::string encoder = "decoder.layers.1.cross_attention.encoder.layers.";
  expect_attention(encoder + "0.cross_attention.attn.");
  expect_norm(encoder + "0.");
  for (const std::string& name : gpt) {  // two whole layers
    const std::string layer = "decoder.layers.0.";
    if (!name.starts_with(layer)) continue;
    for (const char* number : {"0.", "1."}) {
      EXPECT_EQ(own.erase(encoder + number + name.substr(layer.size())), 1u) << name;
    }
  }
  EXPECT_THAT(own, testing::IsEmpty());
}

TEST(RetroModelTest, WithoutNeighboursIsTheGptBitForBit) {
  const Tensor tokens = some_tokens();
  const Tensor want = SmallModel(gpt_config()).hidden(tokens, {});
  const SmallModel retro(retro_config());
  expect_identical(retro.hidden(tokens, {}), want);
  TransformerConfig closed = retro_config();
  closed.retro.attention_gate = 0;
  expect_identical(SmallModel(closed).hidden(tokens, some_neighbors()), want);
  EXPECT_NE(element(retro.hidden(tokens, some_neighbors()), want.numel() - 1),
            element(want, want.numel() - 1));
}

TEST(RetroModelTest, GateScalesWhatIsRead) {
  TransformerConfig half = retro_config();
  half.retro.attention_gate = 0.5;
  half.retro.layer_numbers = {3};
  TransformerConfig whole = half;
  whole.retro.attention_gate = 1;
  EXPECT_NE(element(SmallModel(half).hidden(some_tokens(), some_neighbors()), 150),
            element(SmallModel(whole).hidden(some_tokens(), some_neighbors()), 150));
}

// Each token and its neighbours' encoder: what a token makes of a chunk is seen from the chunk's
// last token on.
TEST(RetroModelTest, NoTokenSeesALaterOne) {
  for (const PositionEmbedding positions :
       {PositionEmbedding::kLearnedAbsolute, PositionEmbedding::kRope}) {
    TransformerConfig config = retro_config();
    config.position_embedding_type = positions;
    const SmallModel retro(config);
    const Tensor tokens = some_tokens();
    const Tensor before = retro.hidden(tokens, some_neighbors());
    const int64_t width = before.size(1) * before.size(2);
    for (int64_t t = 0; t < kRetroModelLength; ++t) {
      Tensor changed = copied(tokens);
      for (int64_t sample = 0; sample < kBatch; ++sample) {
        int64_t& id = changed.span<int64_t>()[static_cast<size_t>(sample * kRetroModelLength + t)];
        id = (id + 1) % kRows;
      }
      const Tensor after = retro.hidden(changed, some_neighbors());
      expect_identical(copied(after.slice(0, t)), copied(before.slice(0, t)),
                       "before token " + std::to_string(t));
      for (int64_t later = t; later < kRetroModelLength; ++later) {
        EXPECT_NE(element(after, later * width), element(before, later * width));
      }
    }
  }
}

// A neighbour is seen from the last token of its chunk on: tokens 1, 5 and 9.
TEST(RetroModelTest, NeighboursAreSeenFromTheEndOfTheirChunk) {
  const SmallModel retro(retro_config());
  const Tensor before = retro.hidden(some_tokens(), some_neighbors());
  const int64_t width = before.size(1) * before.size(2);
  for (int64_t chunk = 0; chunk < 3; ++chunk) {
    Tensor changed = some_neighbors();
    for (int64_t i = chunk * 16; i < (chunk + 1) * 16; ++i) {  // of the first sample
      int64_t& id = changed.span<int64_t>()[static_cast<size_t>(i)];
      id = (id + 1) % kRows;
    }
    const Tensor after = retro.hidden(some_tokens(), changed);
    for (int64_t t = 0; t < kRetroModelLength; ++t) {
      EXPECT_EQ(element(after, t * width) != element(before, t * width), t >= 1 + 4 * chunk)
          << chunk << " " << t;
      EXPECT_EQ(element(after, t * width + 16), element(before, t * width + 16));  // the other
    }
  }
}

TEST(RetroConfigTest, LayersAreThoseOfMegatron) {
  const auto layers = [](int64_t num_layers) {
    RetroConfig retro;
    retro.add_retriever = true;
    return resolved(retro, num_layers).layer_numbers;
  };
  EXPECT_THAT(layers(5), testing::IsEmpty());
  EXPECT_THAT(layers(12), testing::ElementsAre(6, 9, 12));
  EXPECT_THAT(layers(15), testing::ElementsAre(6, 9, 12, 15));
  EXPECT_THAT(layers(24), testing::ElementsAre(9, 12, 15, 18, 21, 24));
  EXPECT_THAT(resolved(RetroConfig{}, 12).layer_numbers, testing::IsEmpty());
}

TEST(RetroConfigTest, EveryProblemIsNamed) {
  TransformerConfig config = retro_config();
  config.retro.layer_numbers = {0, 4};
  config.retro.chunk_length = 0;
  config.retro.num_neighbors = -1;
  config.retro.num_retrieved_chunks = 0;
  config.retro.encoder_layers = 0;
  config.retro.encoder_hidden_dropout = 1;
  config.retro.encoder_attention_dropout = -0.1;
  config.parallel_residual = true;
  config.lora_rank = 2;
  config.position_embedding_type = PositionEmbedding::kAlibi;
  config.group_query_attention = true;
  const std::vector<std::string> found = retro_problems(resolved(config));
  for (const char* words :
       {"--retro-layer-numbers 0 must be between 1 and --num-layers 3", "--retro-layer-numbers 4",
        "--retro-gpt-chunk-length 0 must be", "--retro-num-neighbors -1",
        "--retro-num-retrieved-chunks 0", "--retro-encoder-layers 0",
        "--retro-encoder-hidden-dropout 1", "--retro-encoder-attention-dropout -0.1",
        "--parallel-residual", "--lora-rank", "alibi", "--group-query-attention"}) {
    EXPECT_THAT(found, testing::Contains(testing::HasSubstr(words)));
  }
  TransformerConfig few = gpt_config();
  few.retro.add_retriever = true;
  few.retro.chunk_length = 4;
  EXPECT_THAT(retro_problems(resolved(few)),
              testing::ElementsAre(testing::HasSubstr("none of 3 layers")));
  TransformerConfig wide = retro_config();
  wide.retro.num_retrieved_chunks = 5;
  EXPECT_THAT(retro_problems(resolved(wide)),
              testing::ElementsAre(testing::HasSubstr("neighbours of 20 tokens")));
}

}  // namespace
}  // namespace megatron
