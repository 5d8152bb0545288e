#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "megatron/core/error.h"
#include "megatron/inference/generate.h"
#include "megatron/transformer/init.h"
#include "tests/support/device_under_test.h"
#include "tests/support/message_of.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

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
  static Request request(int32_t number, int64_t max_new_tokens = 40) {
    Request made;
    for (int32_t i = 0; i <= number % 11; ++i) made.text.push_back((number * 7 + i * i) % 61);
    made.prompt = {number % 3};
    made.max_new_tokens = max_new_tokens;
    made.row = number;
    made.return_log_probabilities = true;
    return made;
  }

  // Log-probabilities [n - 1, v] of the tokens behind each of `tokens`, from a forward pass over
  // all of them at once.
  std::vector<std::vector<float>> logits_of(const Request& request, const Tokens& tokens) const {
    const NoGrad no_grad;
    RandomState random(0);
    const auto row = [](const std::vector<int32_t>& ids, size_t count) {
      const std::vector<int64_t> values(ids.begin(), ids.begin() + static_cast<int64_t>(count));
      return tensor_of(values, {1, static_cast<int64_t>(count)});
    };
    const ModelInput input = {.tokens = row(request.text, request.text.size()),
                              .decoder_tokens = row(tokens, tokens.size() - 1)};
    const Variable hidden = model_->hidden_states(input, random);
    const Tensor logits = model_->logits(hidden).data().to(Stream{});
    std::vector<std::vector<float>> rows;
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const auto begin = logits.span<float>().begin() + i * logits.size(2);
      rows.emplace_back(begin, begin + logits.size(2));
    }
    return rows;
  }

  Tokens drawn_alone(const Request& request) const {
    const Generation result = generate({*model_}, {&request, 1})[0];
    return {result.tokens.begin() + result.prompt_length, result.tokens.end()};
  }

  std::unique_ptr<T5Model> model_;
};

// Tokens of the cache are those of one pass over all tokens; texts join and leave.
TEST_P(T5GenerationTest, GreedyTokensAreTheMostProbable) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 70; ++i) {
    requests.push_back(request(i, 1 + i % 40));
    requests.back().sampling.top_k = 1;
  }
  const std::vector<Generation> results = generate({*model_}, requests);
  ASSERT_EQ(results.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Tokens& tokens = results[i].tokens;
    ASSERT_EQ(static_cast<int64_t>(tokens.size()), 1 + requests[i].max_new_tokens);
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
  std::vector<Request> requests;
  for (int32_t i = 0; i < 5; ++i) requests.push_back(request(i));
  const std::vector<Generation> together = generate({*model_}, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(generate({*model_}, {&requests[i], 1})[0].tokens, together[i].tokens);
  }
  EXPECT_NE(together[0].tokens, together[3].tokens);
}

// The encoder pads texts that it reads together; the decoder does not see the padding.
TEST_P(T5GenerationTest, TextsOfOtherLengthsAreReadTogether) {
  std::vector<Request> requests;
  for (const int32_t number : {7, 10, 8, 9, 1, 21}) requests.push_back(request(number, 6));
  const std::vector<Generation> together = generate({*model_}, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generation alone = generate({*model_}, {&requests[i], 1})[0];
    EXPECT_EQ(together[i].tokens, alone.tokens);
    for (size_t k = 0; k < alone.log_probabilities.size(); ++k) {
      EXPECT_NEAR(together[i].log_probabilities[k], alone.log_probabilities[k], 1e-4);
    }
  }
}

TEST_P(T5GenerationTest, StopsAtTheEnd) {
  Request one = request(4);
  const std::vector<int32_t> all = generate({*model_}, {&one, 1})[0].tokens;
  one.stop_tokens = {all[7]};
  const Generation stopped = generate({*model_}, {&one, 1})[0];
  EXPECT_TRUE(stopped.is_stopped);
  const auto first = std::ranges::find(all.begin() + 1, all.end(), all[7]);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(all.begin(), first + 1));
}

// The tokens of a longer prompt are read, not drawn; their probabilities are told.
TEST_P(T5GenerationTest, ReadsThePromptOfTheDecoder) {
  Request one = request(8);
  const Generation all = generate({*model_}, {&one, 1})[0];
  one.prompt.assign(all.tokens.begin(), all.tokens.begin() + 20);
  one.max_new_tokens = 1;
  one.sampling.top_k = 1;
  const Generation next = generate({*model_}, {&one, 1})[0];
  EXPECT_EQ(next.prompt_length, 20);
  ASSERT_EQ(next.tokens.size(), 21u);
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_NEAR(next.log_probabilities[i], all.log_probabilities[i], 1e-5);
  }
}

// Requests come while others run, the cache has few pages, few texts are kept, and a step reads
// few tokens.
TEST_P(T5GenerationTest, DrawsDoNotDependOnWhatElseRuns) {
  const std::vector<EngineOptions> all = {
      {},
      {.max_rows = 2},
      {.max_rows = 3, .max_step_tokens = 3},
      {.page_tokens = 3, .cache_tokens = 27, .encoder_tokens = 100},
      {.page_tokens = 4, .encoder_tokens = 12},
      {.decodes_ahead = true}};
  std::vector<Request> requests;
  for (const int32_t number : {8, 0, 10, 3, 14}) {
    requests.push_back(request(number, 12));
    requests.back().return_log_probabilities = number == 3;
  }
  requests.push_back(requests[2]);  // another draw for the same text
  requests.back().row = 77;
  requests[4].sampling.repetition_penalty = 1.3;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Engine engine({*model_}, all[i]);
    std::map<RequestId, Tokens> drawn;
    for (size_t next = 0; engine.has_work() || next < requests.size();) {
      if (next < requests.size()) engine.submit(requests[next++]);
      for (const RequestProgress& progress : engine.step()) {
        if (progress.token) drawn[progress.id].push_back(*progress.token);
      }
    }
    ASSERT_EQ(drawn.size(), requests.size());
    for (const auto& [id, tokens] : drawn) {
      EXPECT_EQ(tokens, drawn_alone(requests[static_cast<size_t>(id - 1)])) << id;
    }
    EXPECT_EQ(engine.state().pages_owned, 0);
    EXPECT_EQ(engine.state().reused_tokens, 0);
    if (i == 3) {
      EXPECT_GT(engine.state().preemptions, 0);
    }
  }
}

TEST_P(T5GenerationTest, ARequestThatGoesAwayLeavesItsTextToTheOthers) {
  const Request first = request(9, 12);
  Request second = first;
  second.row = 5;
  Engine engine({*model_}, {.encoder_tokens = 12});
  const RequestId gone = engine.submit(first);
  engine.submit(second);
  engine.step();
  engine.cancel(gone);
  Tokens drawn;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) drawn.push_back(*progress.token);
  }
  const Tokens want = drawn_alone(second);
  EXPECT_EQ(drawn, Tokens(want.begin() + 1, want.end()));
  const EngineState state = engine.state();
  EXPECT_EQ(state.prompt_tokens, static_cast<int64_t>(2 * first.text.size()));
}

// Beams beside other texts are those of a search that has the engine for itself, and the score of
// each is that of its tokens in one pass.
TEST_P(T5GenerationTest, BeamsShareTheTextAndPages) {
  Request searched = request(6, 9);
  searched.return_log_probabilities = false;
  searched.beams = BeamOptions{3, 1.0};
  const std::vector<Hypothesis> want = search_beams({*model_}, searched);
  ASSERT_EQ(want.size(), 3u);
  for (const Hypothesis& hypothesis : want) {
    const std::vector<std::vector<float>> logits = logits_of(searched, hypothesis.tokens);
    double sum = 0;
    for (size_t k = 0; k < logits.size(); ++k) {
      sum += log_probability(logits[k], hypothesis.tokens[k + 1]);
    }
    EXPECT_NEAR(hypothesis.score, sum / static_cast<double>(logits.size()), 1e-4);
  }
  Engine engine({*model_}, {.page_tokens = 4});
  engine.submit(request(2));
  const RequestId id = engine.submit(searched);
  engine.submit(request(5));
  std::vector<Hypothesis> got;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      if (progress.id == id && progress.finish != Finish::kNone) got = progress.hypotheses;
    }
  }
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    Tokens tokens = searched.prompt;
    tokens.insert(tokens.end(), got[i].tokens.begin(), got[i].tokens.end());
    EXPECT_EQ(tokens, want[i].tokens);
  }
  EXPECT_EQ(engine.state().pages_owned, 0);
}

TEST_P(T5GenerationTest, RefusesWhatCannotRun) {
  Engine engine({*model_}, {.encoder_tokens = 20});
  const auto refusal = [&](const Tokens& text) {
    Request refused = request(1);
    refused.text = text;
    return message_of<ConfigError>([&] { engine.submit(refused); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("the text has no tokens"));
  EXPECT_THAT(refusal({3, 61}), HasSubstr("token id 61 is not in the model's"));
  EXPECT_THAT(refusal(Tokens(21, 3)),
              HasSubstr("a text of 21 tokens is longer than the 20 tokens"));
  EXPECT_FALSE(engine.has_work());
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
