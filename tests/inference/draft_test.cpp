#include "megatron/inference/draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "megatron/inference/engine.h"
#include "tests/inference/tiny_gpt.h"

namespace megatron {
namespace {

using Tokens = std::vector<int32_t>;

Tokens ngram_drafts(const Tokens& tokens, int64_t max_drafts) {
  NgramDrafter drafter(4, 2, 3);
  return drafter.propose(std::vector<DraftText>{{.tokens = tokens, .max_drafts = max_drafts}}, {})
      .front();
}

TEST(NgramDrafterTest, ProposesWhatFollowedTheLongestEarlierNgram) {
  EXPECT_EQ(ngram_drafts({1, 2, 3, 4, 5, 9, 2, 3}, 4), Tokens({4, 5, 9, 2}));
  EXPECT_EQ(ngram_drafts({1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3}, 2), Tokens({4, 7}));  // 3 tokens
  EXPECT_EQ(ngram_drafts({8, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3}, 2), Tokens({5, 1}));  // the last of 2
  EXPECT_EQ(ngram_drafts({1, 2, 3, 4, 5, 6, 3}, 4), Tokens());                    // only 1 token
  EXPECT_EQ(ngram_drafts({6, 7, 6, 7, 6}, 4), Tokens({7, 6, 7, 6}));              // repeated
  EXPECT_EQ(ngram_drafts({1, 2, 3, 4, 5, 9, 2, 3}, 0), Tokens());
  EXPECT_EQ(ngram_drafts({1}, 4), Tokens());
}

// Proposes the known continuation of each prompt, with an error in every third token.
class KnownDrafter final : public Drafter {
 public:
  explicit KnownDrafter(std::vector<Tokens> texts) : texts_(std::move(texts)) {}
  int64_t max_drafts() const override { return 3; }
  bool reads_hidden_states() const override { return true; }
  std::vector<Tokens> propose(std::span<const DraftText> texts, const Tensor& hidden) override {
    std::vector<Tokens> drafts;
    for (const DraftText& text : texts) {
      EXPECT_LT(text.begin + text.count, std::ssize(text.tokens));
      EXPECT_LE(text.first_row + text.count, hidden.size(0));
      EXPECT_GE(std::ssize(text.pages) * 4, text.begin + text.count);
      Tokens& own = drafts.emplace_back();
      for (const Tokens& whole : texts_) {
        const size_t size = text.tokens.size();
        if (size > whole.size() ||
            !std::equal(text.tokens.begin(), text.tokens.end(), whole.begin()))
          continue;
        for (size_t i = size; i < whole.size() && std::ssize(own) < text.max_drafts; ++i) {
          own.push_back(i % 3 == 0 ? (whole[i] + 1) % 37 : whole[i]);
        }
      }
    }
    return drafts;
  }

 private:
  std::vector<Tokens> texts_;
};

std::vector<Request> draft_requests() {
  std::vector<Request> requests;
  const std::vector<Tokens> prompts = {{5, 17, 9, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8}, {9, 8}};
  for (const Tokens& prompt : prompts) {
    Request request = {.prompt = prompt, .max_new_tokens = 16, .seed = 7};
    request.sampling.top_k = 1;
    requests.push_back(request);
    request.sampling.top_k = 0;
    requests.push_back(request);
    request.sampling.repetition_penalty = 1.5;
    request.sampling.frequency_penalty = 0.5;
    request.return_log_probabilities = true;
    request.num_top = 2;
    requests.push_back(request);
    request.sampling.logit_bias = {{3, 1.0}};  // drawn on the host
    request.stop_tokens = {11, 12};
    request.min_new_tokens = 4;
    requests.push_back(request);
    request.sampling = {};
    request.beams = BeamOptions{.width = 2};
    request.return_log_probabilities = false;
    request.num_top = 0;
    requests.push_back(request);
  }
  return requests;
}

// All that the requests' progress tells, in the order of each request's tokens.
struct Told {
  Tokens tokens = {};
  std::vector<double> log_probabilities = {};
  std::vector<std::pair<int32_t, double>> top = {};
  Finish finish = Finish::kNone;
  std::vector<Tokens> beams = {};
};

struct Ran {
  std::map<RequestId, Told> told = {};
  EngineState state = {};
  int64_t steps = 0;
};

Ran ran_with(const InferenceModel& model, std::span<const Request> requests,
             const EngineOptions& options) {
  Engine engine(model, options);
  for (const Request& request : requests) engine.submit(request);
  Ran ran;
  for (; engine.has_work(); ++ran.steps) {
    for (const RequestProgress& progress : engine.step()) {
      Told& told = ran.told[progress.id];
      EXPECT_EQ(told.finish, Finish::kNone);
      told.finish = progress.finish;
      if (progress.token) {
        told.tokens.push_back(*progress.token);
        told.log_probabilities.push_back(progress.log_probability);
      }
      for (const TokenProbability& top : progress.top) {
        told.top.emplace_back(top.token, top.log_probability);
      }
      for (const Hypothesis& one : progress.hypotheses) told.beams.push_back(one.tokens);
    }
  }
  ran.state = engine.state();
  EXPECT_EQ(ran.state.pages_owned, 0);
  return ran;
}

void expect_same(const Ran& with, const Ran& without) {
  ASSERT_EQ(with.told.size(), without.told.size());
  for (const auto& [id, told] : with.told) {
    SCOPED_TRACE(id);
    const Told& expected = without.told.at(id);
    EXPECT_EQ(told.tokens, expected.tokens);
    EXPECT_EQ(told.finish, expected.finish);
    EXPECT_EQ(told.beams, expected.beams);
    // The last bits of products depend on the number of their rows.
    EXPECT_THAT(told.log_probabilities,
                testing::Pointwise(testing::DoubleNear(1e-5), expected.log_probabilities));
    ASSERT_EQ(told.top.size(), expected.top.size());
    for (size_t i = 0; i < told.top.size(); ++i) {
      EXPECT_EQ(told.top[i].first, expected.top[i].first);
      EXPECT_NEAR(told.top[i].second, expected.top[i].second, 1e-5);
    }
  }
}

class DraftTest : public testing::TestWithParam<PositionEmbedding> {};

TEST_P(DraftTest, LeaveTokensAndProbabilitiesAsTheyAre) {
  const auto model = tiny_gpt(GetParam());
  const std::vector<Request> requests = draft_requests();
  for (const int64_t cache_tokens : {0, 72}) {  // the smaller one preempts texts
    EngineOptions options = {.page_tokens = 4, .cache_tokens = cache_tokens};
    const Ran without = ran_with(*model, requests, options);
    EXPECT_EQ(without.state.drafts, 0);
    if (cache_tokens > 0) {
      EXPECT_GT(without.state.preemptions, 0);
    }
    std::vector<Tokens> whole;
    for (const auto& [id, told] : without.told) {
      whole.push_back(requests[static_cast<size_t>(id - 1)].prompt);
      whole.back().insert(whole.back().end(), told.tokens.begin(), told.tokens.end());
    }
    options.drafter = std::make_shared<KnownDrafter>(whole);
    const Ran known = ran_with(*model, requests, options);
    expect_same(known, without);
    EXPECT_LE(known.steps, without.steps);  // beam searches take as many as before
    EXPECT_GT(known.state.accepted_draft_tokens, known.state.drafts / 2);
    EXPECT_LT(known.state.accepted_draft_tokens, known.state.draft_tokens);

    options.drafter = std::make_shared<NgramDrafter>(5, 1, 3);
    options.max_step_tokens = 24;
    const Ran ngram = ran_with(*model, requests, options);
    expect_same(ngram, without);
    EXPECT_GT(ngram.state.accepted_draft_tokens, 0);
  }
}
INSTANTIATE_TEST_SUITE_P(Positions, DraftTest,
                         testing::Values(PositionEmbedding::kLearnedAbsolute,
                                         PositionEmbedding::kRope, PositionEmbedding::kAlibi));

// Accepted drafts are read in the same pass: a text that repeats itself takes few.
TEST(DraftTest, SavePassesOfARepeatingText) {
  const auto model = tiny_gpt();
  Request request = {.prompt = {5, 17, 9}, .max_new_tokens = 60};
  request.sampling.top_k = 1;
  const std::vector<Request> requests = {request};
  const Ran without = ran_with(*model, requests, {});
  const Ran with = ran_with(*model, requests, {.drafter = std::make_shared<NgramDrafter>(7, 2, 4)});
  expect_same(with, without);
  EXPECT_EQ(without.steps, 60);
  EXPECT_LT(with.steps, 40);
}

}  // namespace
}  // namespace megatron
