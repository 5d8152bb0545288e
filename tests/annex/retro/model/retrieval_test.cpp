#include "annex/retro/model/retrieval.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <tuple>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/inference/model_step.h"
#include "megatron/models/retro/retro_model.h"
#include "tests/support/message_of.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kPromptRows = 40;  // of the vocabulary
constexpr int64_t kEod = 36;
constexpr int64_t kPositions = 24;
constexpr int64_t kNeighborLength = 6;

TransformerConfig small_retro(PositionEmbedding positions, RetroResidual residual) {
  TransformerConfig c;
  c.num_layers = 3;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.seq_length = kPositions;
  c.max_position_embeddings = kPositions;
  c.padded_vocab_size = kPromptRows;
  c.position_embedding_type = positions;
  c.hidden_dropout = c.attention_dropout = 0;
  c.init_method_std = 0.3;
  c.retro = {.add_retriever = true,
             .layer_numbers = {2, 3},
             .chunk_length = 3,
             .num_neighbors = 2,
             .num_retrieved_chunks = kNeighborLength / 3,
             .encoder_hidden_dropout = 0,
             .encoder_attention_dropout = 0,
             .encoder_residual = residual,
             .attention_gate = 0.5};
  return resolved(c);
}

std::vector<int32_t> some_ids(int64_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((i * i * 5 + seed * 7) % 36);
  return ids;
}

PromptNeighbors neighbors_of_prompt() {
  const std::vector<int32_t> ids = some_ids(2 * kNeighborLength, 3);
  return {{ids.begin(), ids.end()}, kNeighborLength};
}

// The definition, which is Megatron-LM's program: each step computes all tokens of a buffer of
// twice the prompt anew, as training does.
std::vector<int32_t> plain_loop(const GptModel& model, const std::vector<int32_t>& prompt,
                                const PromptNeighbors& neighbors, int64_t max_new_tokens) {
  const NoGrad no_grad;
  const auto length = std::ssize(prompt);
  const int64_t total = std::min(2 * length, kPositions);
  std::vector<int64_t> buffer(prompt.begin(), prompt.end());
  buffer.resize(static_cast<size_t>(total), kEod);
  std::vector<int64_t> of_chunks;  // the same for both
  for (int64_t chunk = 0; chunk < 2; ++chunk) {
    of_chunks.insert(of_chunks.end(), neighbors.tokens.begin(), neighbors.tokens.end());
  }
  const int64_t count = std::ssize(of_chunks) / neighbors.length;
  std::vector<int32_t> made = prompt;
  for (int64_t at = length; at < std::min(total, length + max_new_tokens); ++at) {
    RandomState random(1);
    ModelInput input = {.tokens = tensor_of(buffer, {1, total})};
    input.neighbor_tokens = tensor_of(of_chunks, {count, neighbors.length});
    input.chunk_rows = Tensor({length, 0}, DType::kInt64, Stream{});
    const Variable hidden = model.hidden_states(input, random);
    const Tensor logits = model.logits(Variable(hidden.data().slice(at - 1, 1))).data();
    const std::span<const float> row = logits.span<float>();
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    buffer[static_cast<size_t>(at)] = best;
    made.push_back(static_cast<int32_t>(best));
  }
  return made;
}

Request greedy(const std::vector<int32_t>& prompt) {
  Request request;
  request.prompt = prompt;
  request.sampling.top_k = 1;
  return request;
}

// Parameters: positions, what the encoder's cross-attention is added to, tokens of the prompt.
class RetroGenerationTest
    : public testing::TestWithParam<std::tuple<PositionEmbedding, RetroResidual, int64_t>> {};

TEST_P(RetroGenerationTest, EqualsALoopThatComputesAllTokensAnew) {
  const auto [positions, residual, length] = GetParam();
  const TransformerConfig config = small_retro(positions, residual);
  const RetroModel model(config, Stream{});
  initialize(model, 5);
  const std::vector<int32_t> prompt = some_ids(length, 1);
  const std::vector<int32_t> want = plain_loop(model, prompt, neighbors_of_prompt(), 64);
  EXPECT_EQ(std::ssize(want), std::min(2 * length, kPositions));
  EXPECT_EQ(generate_with_neighbors({model}, greedy(prompt), neighbors_of_prompt()).tokens, want);
  // The neighbours are not without effect.
  PromptNeighbors others = neighbors_of_prompt();
  for (int64_t& token : others.tokens) token = 35 - token;
  if (length > 2) {
    EXPECT_NE(plain_loop(model, prompt, others, 64), want);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Models, RetroGenerationTest,
    testing::Combine(testing::Values(PositionEmbedding::kLearnedAbsolute, PositionEmbedding::kRope),
                     testing::Values(RetroResidual::kPre, RetroResidual::kPost),
                     testing::Values(1, 2, 9, 12, 17, 23)));

TEST(RetroGenerationTest, EveryTensorParallelLayoutWritesTheSame) {
  const TransformerConfig config =
      small_retro(PositionEmbedding::kLearnedAbsolute, RetroResidual::kPre);
  const RetroModel whole(config, Stream{});
  initialize(whole, 5);
  const auto want = generate_with_neighbors({whole}, greedy(some_ids(9, 1)), neighbors_of_prompt());
  comm::run_ranks(2, [&](const comm::Group& world) {
    ParallelConfig layout;
    layout.tensor_model_parallel_size = 2;
    layout.world_size = 2;
    layout.data_parallel_size = 1;
    const ParallelContext parallel = make_parallel_context(world, layout);
    const RetroModel model(config, whole_model(config.num_layers), parallel.tensor, Stream{});
    initialize(model, 5);
    const auto got =
        generate_with_neighbors({model, parallel}, greedy(some_ids(9, 1)), neighbors_of_prompt());
    EXPECT_EQ(got.tokens, want.tokens);
  });
}

TEST(RetroGenerationTest, EndsAtAStopTokenOrAfterSoMany) {
  const TransformerConfig config =
      small_retro(PositionEmbedding::kLearnedAbsolute, RetroResidual::kPre);
  const RetroModel model(config, Stream{});
  initialize(model, 5);
  Request request = greedy(some_ids(9, 1));
  const auto all = generate_with_neighbors({model}, request, neighbors_of_prompt());
  EXPECT_FALSE(all.is_stopped);
  request.stop_tokens = {all.tokens[11]};
  const auto stopped = generate_with_neighbors({model}, request, neighbors_of_prompt());
  EXPECT_TRUE(stopped.is_stopped);
  EXPECT_EQ(stopped.tokens.back(), all.tokens[11]);
  EXPECT_LE(stopped.tokens.size(), 12u);
  request.stop_tokens = {};
  request.max_new_tokens = 2;
  EXPECT_EQ(generate_with_neighbors({model}, request, neighbors_of_prompt()).tokens.size(), 11u);
}

TEST(RetroGenerationTest, RefusesAPromptWithoutRoom) {
  const TransformerConfig config = small_retro(PositionEmbedding::kRope, RetroResidual::kPre);
  EXPECT_THAT(message_of<ConfigError>([&] { two_chunks(kPositions, config); }),
              testing::HasSubstr("a prompt of 24 tokens leaves no room for an answer"));
  EXPECT_THROW(two_chunks(0, config), ConfigError);
  const TwoChunks chunks = two_chunks(17, config);
  EXPECT_EQ(chunks.first, 7);
  EXPECT_EQ(chunks.chunk_length, 17);
}

}  // namespace
}  // namespace megatron
