// The T5 model against transformers' T5ForConditionalGeneration: loss, logits, tokens, every
// gradient and three AdamW steps (tests/golden/hf/README.md says how they were made).
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "megatron/inference/generate.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/models/t5/t5_model.h"
#include "tests/interchange/hf/golden_model.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

// What differs between the published versions.
struct Version {
  const char* folder;
  Activation activation;
  bool scale_decoder_outputs;
};
void PrintTo(const Version& version, std::ostream* out) { *out << version.folder; }

std::filesystem::path folder_of(const Version& version) {
  return source_path("tests/golden/hf") / std::filesystem::path(version.folder);
}

class T5GoldenTest : public testing::TestWithParam<Version> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    golden_ = std::make_unique<GoldenModel<T5Model>>(GetParam().folder);
    read_batch();
  }

  // The decoder reads the labels one place later, behind the padding with which it begins.
  void read_batch() {
    const Tensor attends = golden_->integers("input.attention_mask");
    labels_ = golden_->integers("input.labels");
    Tensor decoder_tokens(labels_.shape(), DType::kInt64, Stream{});
    loss_mask_ = Tensor(labels_.shape(), DType::kFloat32, Stream{});
    input_.padding_mask = Tensor(attends.shape(), DType::kBool, Stream{});
    for (size_t i = 0; i < static_cast<size_t>(attends.numel()); ++i) {
      input_.padding_mask.span<bool>()[i] = attends.span<int64_t>()[i] == 0;
    }
    const auto labels = labels_.span<int64_t>();
    const auto length = static_cast<size_t>(labels_.size(1));
    for (size_t i = 0; i < labels.size(); ++i) {
      loss_mask_.span<float>()[i] = labels[i] >= 0 ? 1.0f : 0.0f;
      decoder_tokens.span<int64_t>()[i] = i % length == 0 ? 0 : std::max<int64_t>(labels[i - 1], 0);
    }
    input_.tokens = golden_->integers("input.input_ids");
    input_.decoder_tokens = decoder_tokens;
    labels_ = labels_.to(stream_under_test());
    loss_mask_ = loss_mask_.to(stream_under_test());
  }

  Variable hidden() { return (*golden_)->hidden_states(input_, random_); }
  Variable loss() {
    return token_loss(**golden_, hidden(), {.labels = labels_, .loss_mask = loss_mask_});
  }

  std::unique_ptr<GoldenModel<T5Model>> golden_;
  ModelInput input_;
  Tensor labels_;
  Tensor loss_mask_;
  RandomState random_{1234};
};

TEST_P(T5GoldenTest, ConfigIsWrittenAsItIsRead) {
  const HfModel model = read_hf_config(folder_of(GetParam()));
  EXPECT_EQ(model.family->model_type, "t5");
  EXPECT_EQ(model.transformer.kind, ModelKind::kT5);
  EXPECT_EQ(model.transformer.activation, GetParam().activation);
  EXPECT_EQ(model.transformer.scale_decoder_outputs, GetParam().scale_decoder_outputs);
  EXPECT_EQ(&hf_family_of(model.transformer), model.family);
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "config.json";
  std::ofstream(file) << hf_config_text(model);
  EXPECT_EQ(hf_config_text(read_hf_config(file)), hf_config_text(model));
}

TEST_P(T5GoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), golden_->expected("loss").item(), 1e-5);
  const NoGrad no_grad;
  const Tensor want = golden_->expected("logits");
  const Tensor logits = like_theirs((*golden_)->logits(hidden()).data().to(Stream{}), want);
  EXPECT_LE(deviation(logits, want).absolute, 1e-4);
}

// The text is read without its padding, and many requests run at once: one for each place, whose
// prompt are the labels before it.
TEST_P(T5GoldenTest, TheEngineDrawsTheMostProbableTokens) {
  if (!stream_under_test().is_cpu()) {
    GTEST_SKIP()
        << "attention over pages on a GPU needs heads of 8, 16, .. channels; these have 12";
  }
  const Tensor want = golden_->expected("logits");  // [b, sd, v]
  const Tensor texts = golden_->integers("input.input_ids");
  const Tensor attends = golden_->integers("input.attention_mask");
  std::vector<Request> requests;
  for (int64_t row = 0; row < want.size(0); ++row) {
    Request request;
    request.max_new_tokens = 1;
    request.sampling.top_k = 1;
    for (int64_t i = row * texts.size(1); i < (row + 1) * texts.size(1); ++i) {
      const auto at = static_cast<size_t>(i);
      if (attends.span<int64_t>()[at] == 0) continue;
      request.text.push_back(static_cast<int32_t>(texts.span<int64_t>()[at]));
    }
    for (int64_t i = row * want.size(1); i < (row + 1) * want.size(1); ++i) {
      request.prompt.push_back(static_cast<int32_t>(
          std::as_const(input_.decoder_tokens.ids).span<int64_t>()[static_cast<size_t>(i)]));
      requests.push_back(request);
    }
  }
  const std::vector<Generation> drawn = generate({**golden_}, requests);
  const auto width = static_cast<size_t>(want.size(2));
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto logits = want.span<float>().subspan(i * width, width);
    EXPECT_EQ(drawn[i].tokens.back(), std::ranges::max_element(logits) - logits.begin()) << i;
  }
}

// Buckets of distances that no pair of tokens has get no gradient at all.
TEST_P(T5GoldenTest, EveryGradient) { golden_->expect_gradients(loss()); }

TEST_P(T5GoldenTest, ThreeAdamWSteps) {
  golden_->expect_three_adamw_steps([this] { return loss(); });
}

INSTANTIATE_TEST_SUITE_P(Versions, T5GoldenTest,
                         testing::Values(Version{"t5-v1.0", Activation::kRelu, true},
                                         Version{"t5-v1.1", Activation::kGegluTanh, false}),
                         [](const auto& one) {
                           return one.param.scale_decoder_outputs ? "T5_1_0" : "T5_1_1";
                         });

}  // namespace
}  // namespace megatron
