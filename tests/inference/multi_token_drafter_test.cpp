#include "megatron/inference/multi_token_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/engine.h"
#include "tests/inference/tiny_gpt.h"
#include "tests/support/device_under_test.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using DraftedTokens = std::vector<int32_t>;

const std::vector<DraftedTokens> kDraftPrompts = {
    {2, 0, 1, 1, 3, 2, 0, 2, 1, 3, 1, 1, 0}, {1}, {0, 3, 3, 2, 1}, {2, 0, 1, 1, 3, 2, 0, 2, 1, 0}};

// Few tokens, so that some drafts are right.
void predicts_two_more(TransformerConfig& c) {
  c.mtp_num_layers = 2;
  c.padded_vocab_size = 8;
  c.true_vocab_size = 4;
}

using DraftModel = std::pair<PositionEmbedding, void (*)(TransformerConfig&)>;
const DraftModel kDraftModels[] = {{PositionEmbedding::kLearnedAbsolute, predicts_two_more},
                                   {PositionEmbedding::kRope,
                                    [](TransformerConfig& c) {
                                      predicts_two_more(c);
                                      c.mtp_use_repeated_layer = true;
                                    }},
                                   {PositionEmbedding::kRope,
                                    [](TransformerConfig& c) {
                                      predicts_two_more(c);
                                      c.multi_latent_attention = c.qk_layernorm = true;
                                      c.kv_lora_rank = 10;
                                      c.qk_head_dim = 12;
                                      c.qk_pos_emb_head_dim = 4;
                                      c.v_head_dim = 8;
                                    }},
                                   {PositionEmbedding::kAlibi, [](TransformerConfig& c) {
                                      predicts_two_more(c);
                                      c.mtp_num_layers = 4;
                                      c.num_experts = 4;
                                    }}};

// Compares the drafts of another drafter with those of passes over whole texts.
class CheckedDrafter final : public Drafter {
 public:
  CheckedDrafter(const GptModel& model, std::unique_ptr<Drafter> drafter)
      : model_(model), drafter_(std::move(drafter)) {}

  int64_t max_drafts() const override { return drafter_->max_drafts(); }
  bool reads_hidden_states() const override { return true; }
  std::vector<DraftedTokens> propose(std::span<const DraftText> texts,
                                     const Tensor& hidden) override {
    const std::vector<DraftedTokens> drafts = drafter_->propose(texts, hidden);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(std::ssize(drafts[i]), texts[i].max_drafts);
      if (drafts[i].empty()) continue;
      EXPECT_EQ(drafts[i], of_whole_text(texts[i], drafts[i]));
      ++num_checked_;
    }
    return drafts;
  }
  int64_t num_checked() const { return num_checked_; }

 private:
  // The drafts that passes over the whole text and its first drafts give.
  DraftedTokens of_whole_text(const DraftText& text, const DraftedTokens& drafts) const {
    std::vector<int64_t> tokens(text.tokens.begin(), text.tokens.end());
    const int64_t length = std::ssize(tokens) - 1;
    const int64_t num_depths = model_.config().mtp_num_layers;
    tokens.insert(tokens.end(), drafts.begin(), drafts.end());
    tokens.resize(static_cast<size_t>(length + num_depths + 1));
    const auto further = [&](int64_t k) {
      std::vector<int64_t> positions;
      for (int64_t i = 0; i < length; ++i) positions.push_back(k + i);
      const auto from =
          std::span(std::as_const(tokens)).subspan(static_cast<size_t>(k), positions.size());
      return FutureTokens{tensor_of(from, {1, length}), tensor_of(positions, {1, length})};
    };
    RandomState random(0);
    random.set_training(false);
    ModelInput input = {.tokens = further(0).tokens, .position_ids = further(0).position_ids};
    for (int64_t k = 1; k <= num_depths; ++k) input.future.push_back(further(k));
    const Activations states = model_.forward(input, {}, random);
    DraftedTokens best;
    for (size_t depth = 0; depth < drafts.size(); ++depth) {
      const Tensor logits =
          on_host(gathered_logits({model_}, states[depth].data().slice(length - 1, 1)));
      const auto row =
          logits.span<float>().first(static_cast<size_t>(model_.config().counted_vocab_size()));
      best.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    return best;
  }

  const GptModel& model_;
  std::unique_ptr<Drafter> drafter_;
  int64_t num_checked_ = 0;
};

std::map<RequestId, DraftedTokens> drawn_with(const GptModel& model, const EngineOptions& options,
                                              int64_t top_k, EngineState* state = nullptr) {
  Engine engine({model}, options);
  for (const DraftedTokens& prompt : kDraftPrompts) {
    Request request{.prompt = prompt, .max_new_tokens = 20, .seed = 7};
    request.sampling.top_k = top_k;
    engine.submit(request);
  }
  std::map<RequestId, DraftedTokens> drawn;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      if (progress.token) drawn[progress.id].push_back(*progress.token);
      EXPECT_NE(progress.finish, Finish::kFailed);
    }
  }
  EXPECT_EQ(engine.state().pages_owned, 0);
  if (state != nullptr) *state = engine.state();
  return drawn;
}

class MultiTokenDrafterTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    use_device(stream_under_test().device);
    const auto& [positions, change] = kDraftModels[GetParam()];
    model_ = tiny_gpt(positions, stream_under_test(), DType::kFloat32, 32, change);
  }
  std::unique_ptr<Drafter> drafter(const EngineOptions& options, int64_t num_drafts = 2) const {
    return std::make_unique<MultiTokenDrafter>(InferenceModel(*model_), num_drafts,
                                               num_cache_pages(model_->config(), options),
                                               options.page_tokens);
  }
  std::unique_ptr<const GptModel> model_;
};

TEST_P(MultiTokenDrafterTest, DraftsWhatPassesOverWholeTextsDraft) {
  EngineOptions options{.max_step_tokens = 7};  // prompts come in pieces
  options.reuse_prefixes = false;
  auto checked =
      std::make_shared<CheckedDrafter>(*model_, drafter(options, model_->config().mtp_num_layers));
  options.drafter = checked;
  drawn_with(*model_, options, 1);
  EXPECT_GT(checked->num_checked(), 20);
}

TEST_P(MultiTokenDrafterTest, DraftsDoNotChangeTexts) {
  const std::vector<EngineOptions> all = {
      {}, {.max_rows = 3, .page_tokens = 3, .cache_tokens = 42}, {.max_step_tokens = 5}};
  for (const int64_t top_k : {1, 0}) {
    const auto want = drawn_with(*model_, {}, top_k);
    for (EngineOptions options : all) {
      for (const int64_t num_drafts : {1, 2}) {
        options.drafter = drafter(options, num_drafts);
        EngineState state;
        EXPECT_EQ(drawn_with(*model_, options, top_k, &state), want);
        EXPECT_EQ(state.preemptions > 0, options.cache_tokens > 0);
        EXPECT_GT(state.accepted_draft_tokens, 0);
        EXPECT_LT(state.accepted_draft_tokens, state.draft_tokens);
      }
    }
  }
}

// The logits of every token depend on this token alone, and its depths read it as the decoder does.
void make_bigrams(const GptModel& model) {
  for (const Parameter& parameter : named_tensors(model)) {
    const std::string& name = parameter.name;
    Tensor values = parameter.variable.data();
    const Shape& shape = values.shape();
    std::vector<float> elements(static_cast<size_t>(values.numel()), 0.0F);
    if (name.ends_with("eh_proj.weight")) {  // the identity of the embedding
      for (int64_t i = 0; i < shape[0]; ++i) elements[static_cast<size_t>(i * (shape[1] + 1))] = 1;
    } else if (!name.ends_with("linear_proj.weight") && !name.ends_with("linear_fc2.weight")) {
      continue;
    }
    copy_into(values, tensor_of(elements, shape).to(values.stream()));
  }
}

TEST_P(MultiTokenDrafterTest, AcceptsEveryDraftOfDepthsThatAgreeWithTheDecoder) {
  make_bigrams(*model_);
  const auto want = drawn_with(*model_, {}, 1);
  EngineOptions options;
  // 20 tokens take a pass over the prompt, and then 10 passes with 9 drafts or 7 with 12.
  for (const auto& [num_drafts, accepted] : {std::pair(1, 9), std::pair(2, 12)}) {
    options.drafter = drafter(options, num_drafts);
    EngineState state;
    EXPECT_EQ(drawn_with(*model_, options, 1, &state), want);
    EXPECT_EQ(state.accepted_draft_tokens, std::ssize(kDraftPrompts) * accepted);
    EXPECT_EQ(state.draft_tokens, state.accepted_draft_tokens);
  }
}

// No drafts are taken for beams, so their pages have no keys of the depths.
TEST_P(MultiTokenDrafterTest, DraftsForAPromptThatBeamsHaveRead) {
  EngineOptions options{.page_tokens = 4};
  auto checked = std::make_shared<CheckedDrafter>(*model_, drafter(options, 1));
  options.drafter = checked;
  Engine engine({*model_}, options);
  Request request{.prompt = kDraftPrompts.front(), .max_new_tokens = 8};
  request.sampling.top_k = 1;
  for (const bool has_beams : {true, false}) {
    if (has_beams) request.beams = BeamOptions{.width = 2};
    engine.submit(request);
    while (engine.has_work()) engine.step();
    request.beams.reset();
  }
  EXPECT_GT(checked->num_checked(), 0);
}

INSTANTIATE_TEST_SUITE_P(Models, MultiTokenDrafterTest,
                         testing::Range(size_t{0}, std::size(kDraftModels)));

TEST(MultiTokenDrafterErrorTest, NamesWhatTheModelLacks) {
  const auto message = [](const GptModel& model, int64_t num_drafts) {
    return message_of<ConfigError>([&] { MultiTokenDrafter(model, num_drafts, 4, 16); });
  };
  const auto of_two =
      tiny_gpt(PositionEmbedding::kRope, Stream{}, DType::kFloat32, 32, predicts_two_more);
  EXPECT_EQ(message(*of_two, 3),
            "--num-speculative-tokens 3 with --speculative-method mtp must be at most 2, the "
            "--mtp-num-layers of the model");
  EXPECT_EQ(message(*tiny_gpt(), 1),
            "--speculative-method mtp needs a model with multi-token prediction "
            "(--mtp-num-layers), and this one has none; use ngram");
}

}  // namespace
}  // namespace megatron
