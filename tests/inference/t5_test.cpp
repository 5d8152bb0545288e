#include "megatron/inference/t5.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/inference/sampler.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

TransformerConfig tiny_t5(PositionEmbedding positions) {
  TransformerConfig c;
  c.kind = ModelKind::kT5;
  c.num_layers = 2;
  c.decoder_num_layers = 3;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.kv_channels = 8;
  c.seq_length = 16;
  c.decoder_seq_length = 8;
  c.max_position_embeddings = 48;
  c.padded_vocab_size = 61;
  c.init_method_std = 0.3;  // probabilities that differ
  c.hidden_dropout = c.attention_dropout = 0;
  c.position_embedding_type = positions;
  if (positions == PositionEmbedding::kRelative) {
    c.softmax_scale = 1;
    c.relative_attention_num_buckets = 8;
    c.relative_attention_max_distance = 12;
  }
  return resolved(c);
}

class T5GenerationTest : public testing::TestWithParam<PositionEmbedding> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    model_ = std::make_unique<T5Model>(tiny_t5(GetParam()), stream_under_test());
    initialize(*model_, 1);
  }

  // A text of its own, and what is asked for it.
  static T5Request request(int32_t number, int64_t max_new_tokens = 40) {
    T5Request made;
    for (int32_t i = 0; i <= number % 11; ++i) made.text.push_back((number * 7 + i * i) % 61);
    made.decoding.prompt = {number % 3};
    made.decoding.max_new_tokens = max_new_tokens;
    made.decoding.row = number;
    made.decoding.return_log_probabilities = true;
    return made;
  }

  // Log-probabilities [n - 1, v] of the tokens behind each of `tokens`, from a forward pass over
  // all of them at once.
  std::vector<std::vector<float>> logits_of(const T5Request& request,
                                            const std::vector<int32_t>& tokens) const {
    const NoGrad no_grad;
    RandomState random(0);
    const auto row = [](const std::vector<int32_t>& ids, size_t count) {
      const std::vector<int64_t> values(ids.begin(), ids.begin() + static_cast<int64_t>(count));
      return tensor_of(values, {1, static_cast<int64_t>(count)});
    };
    const T5Input input = {.encoder_tokens = row(request.text, request.text.size()),
                           .decoder_tokens = row(tokens, tokens.size() - 1)};
    const Variable hidden = model_->forward(input, {}, random).decoder;
    const Tensor logits = model_->logits(hidden).data().to(Stream{});
    std::vector<std::vector<float>> rows;
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const auto begin = logits.span<float>().begin() + i * logits.size(2);
      rows.emplace_back(begin, begin + logits.size(2));
    }
    return rows;
  }

  T5Inference inference() const { return {*model_}; }

  std::unique_ptr<T5Model> model_;
};

// Tokens of the cache are those of one pass over all tokens; texts join and leave.
TEST_P(T5GenerationTest, GreedyTokensAreTheMostProbable) {
  std::vector<T5Request> requests;
  for (int32_t i = 0; i < 70; ++i) {
    requests.push_back(request(i, 1 + i % 40));
    requests.back().decoding.sampling.top_k = 1;
  }
  const std::vector<Generation> results = generate(inference(), requests);
  ASSERT_EQ(results.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t>& tokens = results[i].tokens;
    ASSERT_EQ(static_cast<int64_t>(tokens.size()), 1 + requests[i].decoding.max_new_tokens);
    ASSERT_EQ(results[i].log_probabilities.size(), tokens.size() - 1);
    const std::vector<std::vector<float>> logits = logits_of(requests[i], tokens);
    for (size_t k = 0; k + 1 < tokens.size(); ++k) {
      const auto best = std::ranges::max_element(logits[k]) - logits[k].begin();
      EXPECT_EQ(tokens[k + 1], best) << "request " << i << ", token " << k;
      EXPECT_NEAR(results[i].log_probabilities[k], log_probability(logits[k], best), 1e-4);
    }
  }
}

TEST_P(T5GenerationTest, DrawsDependOnTheRequestAlone) {
  std::vector<T5Request> requests;
  for (int32_t i = 0; i < 5; ++i) requests.push_back(request(i));
  const std::vector<Generation> together = generate(inference(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(generate(inference(), {&requests[i], 1})[0].tokens, together[i].tokens);
  }
  EXPECT_NE(together[0].tokens, together[3].tokens);
}

TEST_P(T5GenerationTest, StopsAtTheEnd) {
  T5Request one = request(4);
  const std::vector<int32_t> all = generate(inference(), {&one, 1})[0].tokens;
  one.decoding.stop_tokens = {all[7]};
  const Generation stopped = generate(inference(), {&one, 1})[0];
  EXPECT_TRUE(stopped.is_stopped);
  const auto first = std::ranges::find(all.begin() + 1, all.end(), all[7]);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(all.begin(), first + 1));
}

// The tokens of a longer prompt are read, not drawn; their probabilities are told.
TEST_P(T5GenerationTest, ReadsThePromptOfTheDecoder) {
  T5Request one = request(8);
  const Generation all = generate(inference(), {&one, 1})[0];
  one.decoding.prompt.assign(all.tokens.begin(), all.tokens.begin() + 20);
  one.decoding.max_new_tokens = 1;
  one.decoding.sampling.top_k = 1;
  const Generation next = generate(inference(), {&one, 1})[0];
  EXPECT_EQ(next.prompt_length, 20);
  ASSERT_EQ(next.tokens.size(), 21u);
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_NEAR(next.log_probabilities[i], all.log_probabilities[i], 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Positions, T5GenerationTest,
                         testing::Values(PositionEmbedding::kLearnedAbsolute,
                                         PositionEmbedding::kRelative),
                         [](const auto& one) {
                           return one.param == PositionEmbedding::kRelative ? "Relative"
                                                                            : "Learned";
                         });

}  // namespace
}  // namespace megatron
