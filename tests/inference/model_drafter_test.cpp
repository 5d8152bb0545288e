#include "megatron/inference/model_drafter.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "megatron/core/error.h"
#include "tests/inference/tiny_gpt.h"
#include "tests/support/device_under_test.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using Texts = std::map<RequestId, std::vector<int32_t>>;

// Few tokens, so that drafts of another model are right at times.
void has_four_tokens(TransformerConfig& c) {
  c.padded_vocab_size = 8;
  c.true_vocab_size = 4;
}
void has_one_layer(TransformerConfig& c) {
  has_four_tokens(c);
  c.num_layers = 1;
  c.max_position_embeddings = c.seq_length = 24;  // some texts are longer
}

class ModelDrafterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    use_device(stream_under_test().device);
    model_ = gpt(has_four_tokens);
    smaller_ = gpt(has_one_layer);
  }
  static std::unique_ptr<const GptModel> gpt(void (*change)(TransformerConfig& config)) {
    return tiny_gpt(PositionEmbedding::kLearnedAbsolute, stream_under_test(), DType::kFloat32, 32,
                    change);
  }

  Texts continued(EngineOptions options, int64_t top_k, const GptModel* drafting = nullptr,
                  int64_t num_drafts = 3) {
    if (drafting != nullptr) {
      options.drafter =
          std::make_shared<ModelDrafter>(InferenceModel(*drafting), num_drafts, options, 4);
    }
    Engine engine({*model_}, options);
    const std::vector<std::vector<int32_t>> prompts = {
        {2, 0, 1, 1, 3, 2, 0, 2, 1, 3, 1, 1, 0}, {1}, {0, 3, 3, 2, 1}, {2, 0, 1, 1, 3, 2, 0, 2, 1}};
    for (const std::vector<int32_t>& prompt : prompts) {
      Request request{.prompt = prompt, .max_new_tokens = 20, .seed = 7};
      request.sampling.top_k = top_k;
      engine.submit(request);
    }
    Texts drawn;
    while (engine.has_work()) {
      for (const RequestProgress& progress : engine.step()) {
        if (progress.token) drawn[progress.id].push_back(*progress.token);
        EXPECT_NE(progress.finish, Finish::kFailed);
      }
    }
    state_ = engine.state();
    return drawn;
  }

  std::unique_ptr<const GptModel> model_, smaller_;
  EngineState state_;
};

TEST_F(ModelDrafterTest, DraftsDoNotChangeTexts) {
  const std::vector<EngineOptions> all = {
      {}, {.max_rows = 3, .page_tokens = 3, .cache_tokens = 42}, {.max_step_tokens = 5}};
  for (const int64_t top_k : {1, 0}) {
    const Texts want = continued({}, top_k);
    for (const EngineOptions& options : all) {
      for (const int64_t num_drafts : {1, 3}) {
        EXPECT_EQ(continued(options, top_k, smaller_.get(), num_drafts), want);
        EXPECT_EQ(state_.preemptions > 0, options.cache_tokens > 0);
        EXPECT_GT(state_.accepted_draft_tokens, 0);
        EXPECT_LT(state_.accepted_draft_tokens, state_.draft_tokens);
      }
    }
  }
}

// A model accepts all of its own drafts: after the prompt's token, 19 take five passes, of which
// four have three drafts and the last has two.
TEST_F(ModelDrafterTest, AcceptsItsOwnContinuations) {
  const Texts want = continued({}, 1);
  EXPECT_EQ(continued({}, 1, model_.get()), want);
  EXPECT_EQ(state_.draft_tokens, 4 * (4 * 3 + 2));
  EXPECT_EQ(state_.accepted_draft_tokens, state_.draft_tokens);
}

TEST_F(ModelDrafterTest, NamesAnotherVocabulary) {
  EXPECT_EQ(message_of<ConfigError>([&] { ModelDrafter(InferenceModel(*model_), 2, {}, 37); }),
            "--speculative-model has a vocabulary of 4 tokens, and the model one of 37; give a "
            "model with the same vocabulary");
}

}  // namespace
}  // namespace megatron
