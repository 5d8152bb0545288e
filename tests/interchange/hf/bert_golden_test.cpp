// The BERT model against transformers' MegatronBertForPreTraining: losses, logits, every gradient
// and three AdamW steps, on the device of the program (tests/golden/hf/README.md says how they were
// made).
#include "megatron/models/bert/bert_model.h"
#include "megatron/ops/elementwise.h"
#include "tests/interchange/hf/golden_model.h"

namespace megatron {
namespace {

class BertGoldenTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    golden_ = std::make_unique<GoldenModel<BertModel>>("megatron-bert");
    input_.tokens = golden_->integers("input.input_ids");
    input_.token_types = golden_->integers("input.token_type_ids");
    const Tensor attends = golden_->integers("input.attention_mask");
    input_.padding_mask = Tensor(attends.shape(), DType::kBool, Stream{});
    Tensor labels = golden_->integers("input.labels");
    Tensor loss_mask(labels.shape(), DType::kFloat32, Stream{});
    for (size_t i = 0; i < static_cast<size_t>(labels.numel()); ++i) {
      input_.padding_mask.span<bool>()[i] = attends.span<int64_t>()[i] == 0;
      loss_mask.span<float>()[i] = labels.span<int64_t>()[i] >= 0 ? 1.0f : 0.0f;
    }
    const Stream stream = (*golden_)->stream();
    const Tensor is_random = golden_->integers("input.next_sentence_label");
    targets_ = {.labels = labels.to(stream),
                .loss_mask = loss_mask.to(stream),
                .is_random = is_random.to(stream)};
    sample_weights_ = full({is_random.size(0), 1}, 1.0f, DType::kFloat32, stream);
  }

  Variable hidden() { return (*golden_)->hidden_states(input_, random_); }
  Variable loss() {
    const BertLosses losses = bert_losses(**golden_, hidden(), targets_, sample_weights_);
    return add(losses.lm, losses.sop);
  }

  std::unique_ptr<GoldenModel<BertModel>> golden_;
  ModelInput input_;
  TokenTargets targets_;
  Tensor sample_weights_;
  RandomState random_{1234};
};

TEST_F(BertGoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), golden_->expected("loss").item(), 1e-5);

  const NoGrad no_grad;
  const Variable last = hidden();
  const Tensor binary = (*golden_)->binary_logits(last).data().to(Stream{});
  EXPECT_LE(deviation(binary, golden_->expected("seq_relationship_logits")).absolute, 1e-4);

  const Tensor logits = (*golden_)->logits(last).data().to(Stream{});  // [s, b, v]
  const Tensor want = golden_->expected("prediction_logits");          // [b, s, v]
  EXPECT_LE(deviation(like_theirs(logits, want), want).absolute, 1e-4);
}

TEST_F(BertGoldenTest, EveryGradient) { golden_->expect_gradients(loss()); }

TEST_F(BertGoldenTest, ThreeAdamWSteps) {
  golden_->expect_three_adamw_steps([this] { return loss(); });
}

}  // namespace
}  // namespace megatron
