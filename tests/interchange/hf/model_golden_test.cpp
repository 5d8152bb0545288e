// The GPT model against Hugging Face transformers: loss, logits, every gradient, and three AdamW
// steps, for every family it can be, on the device of the program (tests/golden/hf/README.md says
// how they were made).
#include "megatron/models/gpt/gpt_model.h"
#include "tests/interchange/hf/golden_model.h"

namespace megatron {
namespace {

// Parameter: a folder (golden_folder).
class GptGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    if (!std::filesystem::exists(golden_folder(GetParam()))) {
      GTEST_SKIP() << "needs " << golden_folder(GetParam()) << ": not found, not run";
    }
    golden_ = std::make_unique<GoldenModel<GptModel>>(GetParam());
    // Hugging Face shifts labels inside the model: position i predicts token i + 1.
    const Tensor ids = golden_->integers("input.input_ids");
    input_.tokens = ids;
    labels_ = golden_->integers("input.input_ids");
    mask_ = full(ids.shape(), 1.0f, DType::kFloat32, {});
    const auto length = static_cast<size_t>(ids.size(1));
    for (size_t i = 0; i < static_cast<size_t>(ids.numel()); ++i) {
      const bool is_last = (i + 1) % length == 0;
      labels_.span<int64_t>()[i] = is_last ? 0 : std::as_const(ids).span<int64_t>()[i + 1];
      if (is_last) mask_.span<float>()[i] = 0;
    }
  }

  Variable hidden() { return (*golden_)->hidden_states(input_, random_); }
  Variable loss() {
    return token_loss(**golden_, hidden(), {.labels = labels_, .loss_mask = mask_});
  }

  std::unique_ptr<GoldenModel<GptModel>> golden_;
  ModelInput input_;
  Tensor labels_;
  Tensor mask_;
  RandomState random_{1234};
};

TEST_P(GptGoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), golden_->expected("loss").item(), 1e-5);

  const NoGrad no_grad;
  const Tensor logits = (*golden_)->logits(hidden()).data().to(Stream{});  // [s, b, v]
  const Tensor want = golden_->expected("logits");                         // [b, s, v]
  EXPECT_LE(deviation(like_theirs(logits, want), want).absolute, 1e-4);
}

TEST_P(GptGoldenTest, EveryGradient) { golden_->expect_gradients(loss()); }

TEST_P(GptGoldenTest, ThreeAdamWSteps) {
  golden_->expect_three_adamw_steps([this] { return loss(); });
}

INSTANTIATE_TEST_SUITE_P(Families, GptGoldenTest,
                         testing::Values("gpt2", "llama", "llama-gqa", "bloom", "gpt-neox", "qwen2",
                                         "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "llama31",
                                         "mistral-sw", "granite", "starcoder2", "gptj", "opt",
                                         "falcon", "falcon-7b", "mpt", "cohere", "smollm3",
                                         "qwen2-moe", "deepseek-v2", "deepseek-v3",
                                         "gpt-oss-small"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megatron
