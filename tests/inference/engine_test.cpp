#include "megatron/inference/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/stream.h"
#include "megatron/inference/generate.h"
#include "tests/inference/tiny_gpt.h"
#include "tests/support/device_under_test.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

const std::vector<Tokens> kPrompts = {
    {5, 17, 9, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8}, {1}, {14, 3, 3, 20, 7, 8, 21, 30, 2, 11}, {9, 8}};

Request request_of(const Tokens& prompt, int64_t row = 0) {
  return {.prompt = prompt, .max_new_tokens = 12, .seed = 7, .row = row};
}

// Steps until all is done. Gives the tokens each request drew.
std::map<RequestId, Tokens> run_all(Engine& engine) {
  std::map<RequestId, Tokens> drawn;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      if (progress.token) drawn[progress.id].push_back(*progress.token);
      EXPECT_NE(progress.finish, Finish::kFailed);
    }
  }
  EXPECT_EQ(engine.state().pages_owned, 0);
  return drawn;
}

Tokens alone(const InferenceModel& model, const Request& request) {
  Engine engine(model, {});
  engine.submit(request);
  return run_all(engine).begin()->second;
}

// Draws by full passes over all tokens, without a cache.
Tokens by_full_passes(const GptModel& model, const Request& request) {
  Tokens tokens = request.prompt;
  for (int64_t step = 0; step < request.max_new_tokens; ++step) {
    const std::vector<int64_t> ids(tokens.begin(), tokens.end());
    const auto length = static_cast<int64_t>(ids.size());
    const NoGrad no_grad;
    const Variable hidden = run_stages({model}, {.tokens = tensor_of(ids, {1, length})}, nullptr);
    Tensor logits = on_host(gathered_logits({model}, hidden.data().slice(length - 1, 1)));
    const auto known = static_cast<size_t>(model.config().counted_vocab_size());
    const std::span<float> row = logits.span<float>().first(known);
    adjust_logits(row, request.sampling, tokens, static_cast<int64_t>(request.prompt.size()));
    tokens.push_back(
        static_cast<int32_t>(sample(row, request.sampling, request.sampling.top_p,
                                    sampling_uniform(request.seed, request.row, step))));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), tokens.end()};
}

// Options of layers and logits, as models of several families have them.
TEST(EngineOptionsTest, ModelsWithLayerOptionsDrawWhatFullPassesDraw) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  use_device(stream_under_test().device);
  using P = PositionEmbedding;
  const std::pair<P, void (*)(TransformerConfig&)> models[] = {
      {P::kRope,
       [](TransformerConfig& c) {
         c.norm_placement = NormPlacement::kAfter;
         c.normalization = Normalization::kRmsNorm;
         c.qk_layernorm = c.qk_layernorm_of_projection = true;
         c.no_rope_layers = {0, 1};
       }},
      {P::kRope,
       [](TransformerConfig& c) {
         c.norm_placement = NormPlacement::kBoth;
         c.normalization = Normalization::kRmsNorm;
         c.apply_layernorm_1p = true;
         c.embedding_multiplier = 2;
         c.final_logit_softcapping = 3;
       }},
      {P::kLearnedAbsolute,
       [](TransformerConfig& c) {
         c.learned_position_offset = 2;
         c.residual_multiplier = 0.5;
         c.logits_multiplier = 0.5;
       }},
      {P::kRope,
       [](TransformerConfig& c) {
         c.multi_latent_attention = c.qk_layernorm = true;
         c.q_lora_rank = 12;
         c.kv_lora_rank = 10;
         c.qk_head_dim = 12;
         c.qk_pos_emb_head_dim = 4;
         c.v_head_dim = 8;
         c.mtp_num_layers = 1;
       }},
      {P::kAlibi, [](TransformerConfig& c) {
         c.alibi_before_scaling = true;
         c.parallel_residual = c.parallel_residual_shares_norm = true;
         c.add_norm_bias = false;
         c.untie_embeddings_and_output_weights = c.add_output_bias = true;
       }}};
  for (size_t i = 0; i < std::size(models); ++i) {
    SCOPED_TRACE(i);
    const auto& [positions, change] = models[i];
    const auto model = tiny_gpt(positions, stream_under_test(), DType::kFloat32, 32, change);
    for (const Tokens& prompt : kPrompts) {
      const Request request = request_of(prompt);
      EXPECT_EQ(alone(*model, request), by_full_passes(*model, request));
    }
  }
}

// A capacity, which drops tokens in training, drops none of a text for the texts beside it.
TEST(EngineExpertsTest, DrawsOfExpertsWithACapacityDoNotDependOnOtherTexts) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  use_device(stream_under_test().device);
  const auto change = [](TransformerConfig& c) {
    c.num_experts = 4;
    c.moe_router_topk = 2;
    c.moe_expert_capacity_factor = 0.5;
  };
  const auto model = tiny_gpt(PositionEmbedding::kLearnedAbsolute, stream_under_test(),
                              DType::kFloat32, 32, change);
  Engine engine(*model, {});
  std::map<RequestId, Request> requests;
  for (const Tokens& prompt : {kPrompts[0], kPrompts[1], kPrompts[2]}) {
    const Request request = request_of(prompt, static_cast<int64_t>(requests.size()));
    requests[engine.submit(request)] = request;
  }
  for (const auto& [id, tokens] : run_all(engine)) {
    EXPECT_EQ(tokens, alone(*model, requests[id])) << id;
  }
}

class EngineTest : public testing::TestWithParam<PositionEmbedding> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    use_device(stream_under_test().device);
    model_ = tiny_gpt(GetParam(), stream_under_test());
  }
  std::unique_ptr<const GptModel> model_;
};

TEST_P(EngineTest, DrawsWhatFullPassesDraw) {
  for (const int64_t top_k : {1, 0}) {
    for (const Tokens& prompt : kPrompts) {
      Request request = request_of(prompt);
      request.sampling.top_k = top_k;
      EXPECT_EQ(alone(*model_, request), by_full_passes(*model_, request));
    }
  }
}

// Requests come while others run, prompts are read in pieces, and pages are too few for all.
TEST_P(EngineTest, DrawsDoNotDependOnWhatElseRuns) {
  const std::vector<EngineOptions> all = {
      {},
      {.max_rows = 2},
      {.max_rows = 3, .max_step_tokens = 3},
      {.page_tokens = 3, .cache_tokens = 27, .reuse_prefixes = false},
      {.page_tokens = 2, .cache_tokens = 30},
      {.decodes_ahead = true},
      {.max_rows = 2, .page_tokens = 3, .cache_tokens = 30, .decodes_ahead = true}};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Engine engine({*model_}, all[i]);
    std::map<RequestId, Request> requests;
    const auto submit = [&](size_t which) {
      const Request request = request_of(kPrompts[which], static_cast<int64_t>(which));
      requests[engine.submit(request)] = request;
    };
    std::map<RequestId, Tokens> drawn;
    for (size_t next = 0; engine.has_work() || next < kPrompts.size();) {
      if (next < kPrompts.size()) submit(next++);
      for (const RequestProgress& progress : engine.step()) {
        if (progress.token) drawn[progress.id].push_back(*progress.token);
      }
    }
    EXPECT_EQ(drawn.size(), kPrompts.size());
    for (const auto& [id, tokens] : drawn) EXPECT_EQ(tokens, alone(*model_, requests[id])) << id;
    EXPECT_EQ(engine.state().pages_owned, 0);
    if (i == 3) {
      EXPECT_GT(engine.state().preemptions, 0);
    }
  }
}

// In FP8 a token sees the rounded keys and values of all tokens, however its prompt was divided.
TEST_P(EngineTest, DrawsFromACacheInFp8DoNotDependOnWhatElseRuns) {
  InferenceModel model(*model_);
  model.kv_cache = KvCacheType::kFp8;
  if (!model.stream().is_cpu()) {
    EXPECT_EQ(message_of<ConfigError>([&] { Engine(model, {}); }),
              "--kv-cache-dtype fp8 on a GPU needs a model in 16 bits with heads of 16, 32, .. 128 "
              "channels, and this one has heads of 8 in float32; give --kv-cache-dtype auto");
    return;
  }
  const std::vector<EngineOptions> all = {
      {.max_rows = 3, .max_step_tokens = 3},
      {.page_tokens = 3, .cache_tokens = 27, .reuse_prefixes = false},
      {.max_rows = 2, .page_tokens = 3, .cache_tokens = 30, .decodes_ahead = true}};
  int num_changed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Engine engine(model, all[i]);
    std::map<RequestId, Request> requests;
    for (const Tokens& prompt : kPrompts) {
      Request request = request_of(prompt, static_cast<int64_t>(requests.size()));
      request.max_new_tokens = 14;
      requests[engine.submit(request)] = request;
    }
    for (const auto& [id, tokens] : run_all(engine)) {
      EXPECT_EQ(tokens, alone(model, requests[id])) << id;
      num_changed += tokens != alone({*model_}, requests[id]) ? 1 : 0;
    }
    if (i == 1) {
      EXPECT_GT(engine.state().preemptions, 0);
    }
  }
  EXPECT_GT(num_changed, 0);  // it rounds
}

// A model whose keys a GPU, too, keeps in FP8.
std::unique_ptr<GptModel> gpt_with_fp8() {
  const Stream stream = stream_under_test();
  return tiny_gpt(PositionEmbedding::kRope, stream,
                  stream.is_cpu() ? DType::kFloat32 : DType::kBFloat16, 128);
}

// Log-probabilities of a request's prompt and of what it draws, which is appended to `text`.
std::vector<double> log_probabilities_of(const InferenceModel& model, Request request,
                                         Tokens& text) {
  request.return_log_probabilities = true;
  Engine engine(model, {.max_step_tokens = 64});
  engine.submit(request);
  std::vector<double> all;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      all.insert(all.end(), progress.prompt_log_probabilities.begin(),
                 progress.prompt_log_probabilities.end());
      if (!progress.token) continue;
      text.push_back(*progress.token);
      all.push_back(progress.log_probability);
    }
  }
  return all;
}

// Tokens that were drawn one by one, and the same tokens read as a prompt: both see rounded keys.
TEST(EngineFp8Test, StepsAndPromptsSeeTheSameKeys) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  use_device(stream_under_test().device);
  const bool is_cpu = stream_under_test().is_cpu();
  const auto gpt = gpt_with_fp8();
  InferenceModel model(*gpt);
  model.kv_cache = KvCacheType::kFp8;
  Request request = request_of(kPrompts[0]);
  request.max_new_tokens = 30;
  Tokens text = request.prompt;
  const std::vector<double> by_steps = log_probabilities_of(model, request, text);
  request.prompt = text;
  request.max_new_tokens = 0;
  Tokens none;
  const std::vector<double> at_once = log_probabilities_of(model, request, none);
  ASSERT_EQ(by_steps.size(), text.size() - 1);
  ASSERT_EQ(at_once.size(), text.size() - 1);
  // Logits of bf16 are up to 0.06 from their numbers; other keys would change all of them.
  const double tolerance = is_cpu ? 1e-3 : 0.25;
  double sum = 0;
  for (size_t i = 0; i < at_once.size(); ++i) {
    EXPECT_NEAR(by_steps[i], at_once[i], tolerance) << i;
    sum += std::abs(by_steps[i] - at_once[i]);
  }
  EXPECT_LT(sum / static_cast<double>(at_once.size()), tolerance / 4);
}

// Beams copy pages; their best text has the same score when it is read at once.
TEST(EngineFp8Test, BeamsKeepTheirScales) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  use_device(stream_under_test().device);
  const auto gpt = gpt_with_fp8();
  InferenceModel model(*gpt);
  model.kv_cache = KvCacheType::kFp8;
  Request request = request_of(kPrompts[0]);
  request.beams = BeamOptions{.width = 4, .length_penalty = 0};
  const Hypothesis best = search_beams(model, request).at(0);
  Request whole = request_of(best.tokens);  // the prompt, too
  whole.max_new_tokens = 0;
  Tokens none;
  const std::vector<double> all = log_probabilities_of(model, whole, none);
  double sum = 0;
  for (size_t i = kPrompts[0].size() - 1; i < all.size(); ++i) sum += all[i];
  EXPECT_NEAR(best.score, sum, stream_under_test().is_cpu() ? 1e-3 : 0.5);
}

// The texts lie in pages on the device: through prompts in pieces, pages that two texts share,
// pages that were lost and steps under way.
TEST_P(EngineTest, PenaltiesAreThoseOfTheWholeText) {
  const SamplingOptions kinds[] = {
      {.top_k = 1, .repetition_penalty = 1.6},
      {.top_k = 1, .presence_penalty = 1.5, .frequency_penalty = 0.8},
      {.repetition_penalty = 1.3, .presence_penalty = -0.5, .frequency_penalty = 0.3},
      {.top_k = 1, .repetition_penalty = 1.2, .logit_bias = {{4, 3.0}}}};  // the host draws
  const std::vector<EngineOptions> all = {
      {.decodes_ahead = false},
      {.max_rows = 3, .max_step_tokens = 4, .page_tokens = 4, .decodes_ahead = true},
      {.page_tokens = 3, .cache_tokens = 36, .decodes_ahead = true}};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Engine engine({*model_}, all[i]);
    std::map<RequestId, Request> requests;
    int num_changed = 0;
    for (const Tokens& prompt : kPrompts) {
      for (const SamplingOptions& sampling : kinds) {
        Request request = request_of(prompt, static_cast<int64_t>(requests.size()));
        Request plain = request;
        plain.sampling.top_k = sampling.top_k;
        request.sampling = sampling;
        if (!sampling.logit_bias.empty()) request.max_new_tokens = 5;  // then the device goes on
        requests[engine.submit(request)] = request;
        num_changed += by_full_passes(*model_, request) != by_full_passes(*model_, plain) ? 1 : 0;
      }
    }
    EXPECT_GT(num_changed, 8);  // of 16
    for (const auto& [id, tokens] : run_all(engine)) {
      EXPECT_EQ(tokens, by_full_passes(*model_, requests[id])) << id;
    }
    EXPECT_GT(engine.state().launched_steps, 0);
    if (i == 2) {
      EXPECT_GT(engine.state().preemptions, 0);
    }
  }
}

TEST_P(EngineTest, ASecondTextReusesTheFirstOnesPages) {
  Engine engine({*model_}, {.page_tokens = 4});
  engine.submit(request_of(kPrompts[0]));
  const Tokens first = run_all(engine).begin()->second;
  EXPECT_EQ(engine.state().reused_tokens, 0);
  const RequestId id = engine.submit(request_of(kPrompts[0]));
  EXPECT_EQ(run_all(engine).at(id), first);
  EXPECT_EQ(engine.state().reused_tokens, 12);  // of 13: the last one is read for its logits
}

// Pages of a prompt are not taken over when the log-probabilities of its tokens are asked for.
TEST_P(EngineTest, LogProbabilitiesAreThoseOfTheScore) {
  Engine engine({*model_}, {.max_step_tokens = 5, .page_tokens = 4});
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < kPrompts.size(); ++i) {
      Request request = request_of(kPrompts[i], static_cast<int64_t>(i));
      request.return_log_probabilities = true;
      request.num_top = 3;
      engine.submit(request);
    }
    std::map<RequestId, Tokens> tokens;
    std::map<RequestId, std::vector<double>> found;
    while (engine.has_work()) {
      for (const RequestProgress& progress : engine.step()) {
        auto& values = found[progress.id];
        values.insert(values.end(), progress.prompt_log_probabilities.begin(),
                      progress.prompt_log_probabilities.end());
        if (!progress.token) continue;
        values.push_back(progress.log_probability);
        tokens[progress.id].push_back(*progress.token);
        ASSERT_EQ(progress.top.size(), 3u);
        EXPECT_GE(progress.top[0].log_probability, progress.top[1].log_probability);
        EXPECT_GE(progress.top[0].log_probability, progress.log_probability);
      }
    }
    EXPECT_GT(engine.state().launched_steps, 0);
    for (const auto& [id, values] : found) {
      Tokens all = kPrompts[static_cast<size_t>((id - 1) % 4)];
      all.insert(all.end(), tokens[id].begin(), tokens[id].end());
      const Score want = score({*model_}, all);
      ASSERT_EQ(values.size(), want.log_probabilities.size());
      for (size_t k = 0; k < values.size(); ++k) {
        EXPECT_NEAR(values[k], want.log_probabilities[k], 1e-5) << id << ", " << k;
      }
    }
  }
}

// Probabilities from logits, in steps of a few tokens; 30 of them are computed on the host.
TEST_P(EngineTest, MostProbableTokensOfThePrompt) {
  for (const int64_t num_top : {3, 30}) {
    Request request = request_of(kPrompts[0]);
    request.max_new_tokens = 0;
    request.return_log_probabilities = true;
    request.num_top = num_top;
    Engine engine({*model_}, {.max_step_tokens = 5});
    engine.submit(request);
    std::vector<double> own;
    std::vector<TokenProbability> top;
    while (engine.has_work()) {
      for (const RequestProgress& progress : engine.step()) {
        own.insert(own.end(), progress.prompt_log_probabilities.begin(),
                   progress.prompt_log_probabilities.end());
        top.insert(top.end(), progress.prompt_top.begin(), progress.prompt_top.end());
      }
    }
    const auto width = static_cast<size_t>(num_top);
    ASSERT_EQ(own.size(), kPrompts[0].size() - 1);
    ASSERT_EQ(top.size(), own.size() * width);
    const Tensor logits = next_token_logits({*model_}, kPrompts[0]);
    for (size_t i = 0; i < own.size(); ++i) {
      const Tensor row = logits.slice(static_cast<int64_t>(i), 1);
      const auto values = std::as_const(row).span<float>().first(37);
      const std::vector<int64_t> want = kernels::cpu::largest_logits(values, num_top);
      const double sum = kernels::cpu::log_sum_exp(values);
      for (size_t k = 0; k < width; ++k) {
        const TokenProbability& one = top[i * width + k];
        EXPECT_EQ(one.token, want[k]) << i << ", " << k;
        EXPECT_NEAR(one.log_probability, values[static_cast<size_t>(want[k])] - sum, 1e-4);
        const bool is_own = one.token == kPrompts[0][i + 1];
        EXPECT_TRUE(!is_own || one.log_probability == own[i]) << i;
      }
    }
  }
}

TEST_P(EngineTest, APromptThatIsNotScoredMayBeReused) {
  Engine engine({*model_}, {.page_tokens = 4});
  Request request = request_of(kPrompts[0]);
  request.return_log_probabilities = true;
  request.scores_prompt = false;
  for (int round = 0; round < 2; ++round) {
    engine.submit(request);
    while (engine.has_work()) {
      for (const RequestProgress& progress : engine.step()) {
        EXPECT_TRUE(progress.prompt_log_probabilities.empty());
        EXPECT_LT(progress.log_probability, 0);
      }
    }
  }
  EXPECT_GT(engine.state().reused_tokens, 0);
}

// Plain texts may stop at any of a few tokens, and at any of many.
TEST_P(EngineTest, EachOfSeveralStopTokensEndsAText) {
  const Tokens all = alone(*model_, request_of(kPrompts[0]));
  for (const Tokens& others : {Tokens{}, Tokens{30, 31, 32, 33, 34, 35}}) {
    Request request = request_of(kPrompts[0]);
    request.stop_tokens = {all[6], all[4]};
    for (const int32_t other : others) {
      const bool comes = std::ranges::find(all, other) != all.end();
      if (!comes) request.stop_tokens.push_back(other);
    }
    const auto end = std::ranges::find_first_of(all, request.stop_tokens);
    EXPECT_EQ(alone(*model_, request), Tokens(all.begin(), end + 1));
  }
}

// A step may draw a token of one text and find log-probabilities of the prompt of another.
TEST_P(EngineTest, LogProbabilitiesBesideATextThatDraws) {
  Engine engine({*model_}, {.max_step_tokens = 4});
  const Request plain = request_of(kPrompts[1]);
  Request scored = request_of(kPrompts[0], 1);
  scored.return_log_probabilities = true;
  const RequestId first = engine.submit(plain);
  engine.step();
  const RequestId second = engine.submit(scored);
  std::vector<double> found;
  Tokens drawn, tokens = scored.prompt;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      if (progress.id == first && progress.token) drawn.push_back(*progress.token);
      if (progress.id != second) continue;
      found.insert(found.end(), progress.prompt_log_probabilities.begin(),
                   progress.prompt_log_probabilities.end());
      if (!progress.token) continue;
      found.push_back(progress.log_probability);
      tokens.push_back(*progress.token);
    }
  }
  const Tokens want_drawn = alone(*model_, plain);
  EXPECT_EQ(drawn, Tokens(want_drawn.begin() + 1, want_drawn.end()));
  const Score want = score({*model_}, tokens);
  ASSERT_EQ(found.size(), want.log_probabilities.size());
  for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], want.log_probabilities[k], 1e-5);
}

// A text that ends by a stop token, and one that goes away, leave a step under way that has them.
TEST_P(EngineTest, TextsThatEndDuringAStepUnderWayLeaveTheOthersAlone) {
  const Request request = request_of(kPrompts[0]);
  const Tokens all = alone(*model_, request);
  Request stopped = request;
  stopped.stop_tokens = {all[3]};
  const auto end = std::find(all.begin(), all.end(), all[3]) + 1;
  for (const bool ahead : {false, true}) {
    Engine engine({*model_}, {.page_tokens = 4, .cache_tokens = 120, .decodes_ahead = ahead});
    const RequestId first = engine.submit(stopped);
    const RequestId gone = engine.submit(request_of(kPrompts[2], 2));
    const RequestId last = engine.submit(request_of(kPrompts[3], 3));
    std::map<RequestId, Tokens> drawn;
    for (int step = 0; engine.has_work(); ++step) {
      for (const RequestProgress& progress : engine.step()) {
        if (progress.token) drawn[progress.id].push_back(*progress.token);
      }
      if (step == 5) engine.cancel(gone);
      if (step == 7) engine.submit(request_of(kPrompts[2], 2));
    }
    EXPECT_EQ(drawn[first], Tokens(all.begin(), end));
    EXPECT_EQ(drawn[last], alone(*model_, request_of(kPrompts[3], 3)));
    EXPECT_EQ(drawn[last + 1], alone(*model_, request_of(kPrompts[2], 2)));
    EXPECT_EQ(engine.state().pages_owned, 0);
  }
}

TEST_P(EngineTest, ARequestWithoutNewTokensIsScored) {
  Engine engine({*model_}, {.max_step_tokens = 4});
  Request request = request_of(kPrompts[0]);
  request.max_new_tokens = 0;
  request.return_log_probabilities = true;
  engine.submit(request);
  std::vector<double> found;
  Finish finish = Finish::kNone;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      EXPECT_FALSE(progress.token);
      found.insert(found.end(), progress.prompt_log_probabilities.begin(),
                   progress.prompt_log_probabilities.end());
      finish = progress.finish;
    }
  }
  EXPECT_EQ(finish, Finish::kLength);
  const Score want = score({*model_}, kPrompts[0]);
  ASSERT_EQ(found.size(), want.log_probabilities.size());
  for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], want.log_probabilities[k], 1e-5);
}

TEST_P(EngineTest, ACanceledRequestLeavesTheOthersAlone) {
  Engine engine({*model_}, {.max_rows = 2});
  const RequestId first = engine.submit(request_of(kPrompts[0]));
  const RequestId second = engine.submit(request_of(kPrompts[2], 2));
  const RequestId waiting = engine.submit(request_of(kPrompts[3], 3));
  engine.step();
  Tokens drawn;
  engine.cancel(first);
  engine.cancel(waiting);
  engine.cancel(99);
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      EXPECT_EQ(progress.id, second);
      drawn.push_back(*progress.token);
    }
  }
  EXPECT_EQ(engine.state().pages_owned, 0);
  const Tokens want = alone(*model_, request_of(kPrompts[2], 2));
  EXPECT_EQ(drawn, Tokens(want.begin() + 1, want.end()));
}

TEST_P(EngineTest, StopsByTokensAndSequences) {
  const Request request = request_of(kPrompts[0]);
  const Tokens all = alone(*model_, request);
  Request stopped = request;
  stopped.stop_tokens = {all[4]};
  const auto first = std::find(all.begin(), all.end(), all[4]);
  EXPECT_EQ(alone(*model_, stopped), Tokens(all.begin(), first + 1));

  stopped = request;
  stopped.stop_sequences = {{all[5], all[6]}};
  const Tokens got = alone(*model_, stopped);
  EXPECT_LE(got.size(), 7u);
  EXPECT_EQ(Tokens(got.end() - 2, got.end()), Tokens({all[5], all[6]}));

  stopped.stop_sequences = {{kPrompts[0].back(), all[0]}};  // begins in the prompt
  EXPECT_EQ(alone(*model_, stopped), Tokens({all[0]}));

  stopped = request;
  stopped.sampling.top_k = 1;
  const Tokens greedy = alone(*model_, stopped);
  stopped.stop_tokens = {greedy[0]};
  stopped.min_new_tokens = 4;
  EXPECT_GE(alone(*model_, stopped).size(), 4u);
}

TEST_P(EngineTest, ATokenIsNeverDrawnAfterAnother) {
  Request request = request_of(kPrompts[0]);
  request.sampling.top_k = 1;
  const Tokens greedy = alone(*model_, request);
  request.never_after = {kPrompts[0].back(), greedy[0]};
  EXPECT_NE(alone(*model_, request)[0], greedy[0]);
  request.never_after = {kPrompts[0].back() + 1, greedy[0]};
  EXPECT_EQ(alone(*model_, request)[0], greedy[0]);
}

// Beams that share pages, beside other texts, find what beams with a pass of their own find.
// Pages found in the prefix cache count among those that the beams may need.
TEST_P(EngineTest, BeamsThatMayNeedEveryPageStartBehindACachedPrefix) {
  Request request = request_of(kPrompts[0]);
  Engine engine(*model_, {.page_tokens = 4, .cache_tokens = 64});  // 2 (7 + 1) pages
  engine.submit(request);
  request.beams = BeamOptions{.width = 2};
  engine.submit(request);
  int steps = 0;
  for (; engine.has_work() && steps < 100; ++steps) engine.step();
  EXPECT_FALSE(engine.has_work());
  EXPECT_GT(engine.state().reused_tokens, 0);
}

TEST_P(EngineTest, BeamsSharePages) {
  const auto log_probabilities = [&](const Tokens& tokens) {
    const std::vector<int64_t> ids(tokens.begin(), tokens.end());
    const auto length = static_cast<int64_t>(ids.size());
    const NoGrad no_grad;
    const Variable hidden = run_stages({*model_}, {.tokens = tensor_of(ids, {1, length})}, nullptr);
    const Tensor logits = on_host(gathered_logits({*model_}, hidden.data().slice(length - 1, 1)));
    const auto row =
        logits.span<float>().first(static_cast<size_t>(model_->config().counted_vocab_size()));
    const double sum = kernels::cpu::log_sum_exp(row);
    std::vector<double> values;
    for (const float logit : row) values.push_back(logit - sum);
    return values;
  };
  Request request = request_of(kPrompts[2]);
  request.beams = BeamOptions{3, 0.7};
  request.stop_tokens = {4, 9, 12};
  BeamSearch plain(*request.beams, request.stop_tokens, request.max_new_tokens);
  std::vector<Tokens> beams = {request.prompt};
  while (!plain.is_done()) {
    std::vector<BeamCandidate> all;
    for (size_t beam = 0; beam < beams.size(); ++beam) {
      const std::vector<double> values = log_probabilities(beams[beam]);
      for (size_t id = 0; id < values.size(); ++id) {
        const auto index = static_cast<int64_t>(beam);
        all.push_back({index, static_cast<int32_t>(id), plain.log_probability(index) + values[id]});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.log_probability > b.log_probability;
    });
    all.resize(static_cast<size_t>(plain.num_candidates()));
    const std::vector<int64_t> parents = plain.advance(all);
    std::vector<Tokens> next;
    for (size_t i = 0; i < parents.size(); ++i) {
      next.push_back(beams[static_cast<size_t>(parents[i])]);
      next.back().push_back(plain.last_token(static_cast<int64_t>(i)));
    }
    beams = next;
  }
  const std::vector<Hypothesis> want = plain.take_result();

  for (const int64_t page_tokens : {1, 4, 16}) {
    Engine engine({*model_}, {.max_step_tokens = 6, .page_tokens = page_tokens});
    engine.submit(request_of(kPrompts[0]));
    const RequestId id = engine.submit(request);
    engine.submit(request_of(kPrompts[3]));
    std::vector<Hypothesis> got;
    while (engine.has_work()) {
      for (const RequestProgress& progress : engine.step()) {
        if (progress.id == id && progress.finish != Finish::kNone) got = progress.hypotheses;
      }
    }
    EXPECT_EQ(engine.state().pages_owned, 0);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_NEAR(got[i].score, want[i].score, 1e-4);
    }
  }
}

TEST_P(EngineTest, RefusesWhatCannotRun) {
  Engine engine({*model_}, {.max_rows = 4, .page_tokens = 4, .cache_tokens = 40});
  const auto refusal = [&](const Request& request) {
    return message_of<ConfigError>([&] { engine.submit(request); });
  };
  EXPECT_THAT(refusal(request_of({})), HasSubstr("a prompt has no tokens"));
  EXPECT_THAT(refusal(request_of({1, 99})), HasSubstr("token id 99 is not in the model's"));
  Request request = request_of({1, 2});
  request.max_new_tokens = 45;
  EXPECT_THAT(refusal(request), HasSubstr("47 tokens are more than the cache of 40 holds"));
  request = request_of({1, 2});
  request.beams = BeamOptions{5, 1.0};
  EXPECT_THAT(refusal(request), HasSubstr("5 beams are more than the 4 texts"));
  EXPECT_FALSE(engine.has_work());
  // Without an engine: before memory for its keys and values is taken.
  request = request_of({1, 2});
  request.max_new_tokens = 99'999'999'999;
  EXPECT_THAT(message_of<ConfigError>([&] {
                generate({*model_}, {&request, 1});
              }),
              HasSubstr("100000000001 tokens, 99999999999 of them new, are more than the "));
}

INSTANTIATE_TEST_SUITE_P(Positions, EngineTest,
                         testing::Values(PositionEmbedding::kLearnedAbsolute,
                                         PositionEmbedding::kRope, PositionEmbedding::kAlibi));

}  // namespace
}  // namespace megatron
