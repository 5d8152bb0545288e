// The GPT model against Hugging Face transformers: loss, logits, every gradient, and three AdamW
// steps, for every family it can be, on the device of the program (tests/golden/hf/README.md says
// how they were made).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/gpt/gpt_parameters.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/support/device_under_test.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

struct Deviation {
  double absolute = 0;  // largest |got - want|
  double relative = 0;  // norm of the difference over norm of want
};

Deviation deviation(ConstView got, ConstView want) {
  const Tensor g = copy_of(got);
  const Tensor w = copy_of(want);
  Deviation result;
  double difference = 0;
  double total = 0;
  for (size_t i = 0; i < static_cast<size_t>(w.numel()); ++i) {
    const double d = static_cast<double>(g.span<float>()[i]) - w.span<float>()[i];
    result.absolute = std::max(result.absolute, std::abs(d));
    difference += d * d;
    total += static_cast<double>(w.span<float>()[i]) * w.span<float>()[i];
  }
  result.relative = std::sqrt(difference) / std::max(std::sqrt(total), 1e-12);
  return result;
}

// Parameter: folder under tests/golden/hf.
class GptGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    const std::filesystem::path folder =
        std::filesystem::path(source_path("tests/golden/hf")) / GetParam();
    hf_ = read_hf_config(folder);
    expected_ = std::make_unique<SafetensorsFile>(folder / "expected.safetensors");
    TransformerConfig config = hf_.transformer;
    config.params_dtype = DType::kFloat32;
    config.hidden_dropout = 0;
    config.attention_dropout = 0;
    model_ = std::make_unique<GptModel>(config, stream_under_test());
    specs_ = gpt_parameters(config);
    std::map<std::string, Variable> by_name;
    for (const NamedParameter& parameter : named_parameters(*model_)) {
      by_name[parameter.name] = parameter.variable;
    }
    ASSERT_EQ(by_name.size(), specs_.size());
    const CheckpointContents contents = open_hf_checkpoint(folder, hf_);
    for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
      copy_into(by_name.at(name).mutable_data(), read_whole(tensor).to(stream_under_test()));
    }

    // Hugging Face shifts labels inside the model: position i predicts token i + 1.
    const Tensor ids = copy_of(expected_->at("input.input_ids"));
    input_.tokens = ids;
    labels_ = copied_ids(ids);
    mask_ = full(ids.shape(), 1.0f, DType::kFloat32, {});
    const auto length = static_cast<size_t>(ids.size(1));
    for (size_t i = 0; i < static_cast<size_t>(ids.numel()); ++i) {
      const bool is_last = (i + 1) % length == 0;
      labels_.span<int64_t>()[i] = is_last ? 0 : ids.span<int64_t>()[i + 1];
      if (is_last) mask_.span<float>()[i] = 0;
    }
  }

  static Tensor copied_ids(const Tensor& ids) {
    return tensor_of(std::span<const int64_t>(ids.span<int64_t>()), ids.shape());
  }

  Variable loss() {
    return gpt_loss(*model_, model_->hidden_states(input_, random_), labels_, mask_);
  }

  LayoutSizes sizes() const {
    const TransformerConfig& config = model_->config();
    return {.num_attention_heads = config.num_attention_heads,
            .num_query_groups = config.num_query_groups,
            .kv_channels = config.kv_channels,
            .vocab_size = hf_.vocab_size};
  }

  // Compares tensors of ours with `<prefix>.<their name>` of the expectations.
  template <class F>
  void compare(const std::string& prefix, const F& tensor_of_name, double absolute,
               double relative) {
    const NameTable table = hf_names(hf_.family, model_->config());
    size_t compared = 0;
    for (const MappedTensor& tensor : mapped(table, specs_)) {
      for (size_t part = 0; part < tensor.theirs.size(); ++part) {
        // GPT-NeoX's output layer has one name in files and another in the running model.
        const std::string& name = tensor.theirs[part];
        const FileTensor* want =
            expected_->find(prefix + "." + (name == "embed_out.weight" ? "lm_head.weight" : name));
        ASSERT_NE(want, nullptr) << tensor.theirs[part];
        const Tensor here = tensor_of_name(tensor.ours.name).to(Stream{});
        const Tensor got = to_theirs(tensor, part, here.view(), sizes());
        ASSERT_EQ(got.shape(), want->spec.shape) << tensor.theirs[part];
        const Deviation d = deviation(got.view(), want->view);
        EXPECT_LE(std::min(d.absolute / absolute, d.relative / relative), 1)
            << prefix << "." << tensor.theirs[part] << ": absolute " << d.absolute << ", relative "
            << d.relative;
        ++compared;
      }
    }
    EXPECT_GE(compared, specs_.size());
  }

  HfModel hf_;
  std::unique_ptr<SafetensorsFile> expected_;
  std::unique_ptr<GptModel> model_;
  std::vector<TensorSpec> specs_;
  GptInput input_;
  Tensor labels_;
  Tensor mask_;
  RandomState random_{1234};
};

TEST_P(GptGoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), copy_of(expected_->at("loss")).item(), 1e-5);

  const NoGrad no_grad;
  const Tensor logits =
      model_->logits(model_->hidden_states(input_, random_)).data().to(Stream{});  // [s, b, v]
  const Tensor want = copy_of(expected_->at("logits"));                            // [b, s, v]
  const int64_t s = logits.size(0);
  const int64_t b = logits.size(1);
  const int64_t v = want.size(2);
  double worst = 0;
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      for (int64_t k = 0; k < v; ++k) {
        const float ours =
            logits.span<float>()[static_cast<size_t>((i * b + j) * logits.size(2) + k)];
        const float theirs = want.span<float>()[static_cast<size_t>((j * s + i) * v + k)];
        worst = std::max(worst, static_cast<double>(std::abs(ours - theirs)));
      }
    }
  }
  EXPECT_LE(worst, 1e-4);
}

TEST_P(GptGoldenTest, EveryGradient) {
  backward(loss());
  std::map<std::string, Tensor> grads;
  for (const NamedParameter& parameter : named_parameters(*model_)) {
    grads[parameter.name] = parameter.variable.grad();
  }
  // A gradient that cancels to rounding noise (a key's bias) is compared absolutely.
  compare(
      "grad", [&](const std::string& name) -> Tensor& { return grads.at(name); }, 1e-7, 1e-4);
}

TEST_P(GptGoldenTest, ThreeAdamWSteps) {
  FlatParameters flat(optimized_parameters(*model_), {});
  OptimizerConfig config;
  config.adam_beta1 = 0.9;
  config.adam_beta2 = 0.95;
  config.adam_eps = 1e-8;
  config.clip_grad = 1.0;
  Optimizer optimizer(flat, config);

  const Tensor want = copy_of(expected_->at("adamw.loss_and_gradnorm"));
  for (size_t step = 0; step < 3; ++step) {
    flat.zero_grads();
    const Variable value = loss();
    EXPECT_NEAR(value.data().item(), want.span<float>()[2 * step], 1e-5);
    backward(value);
    const StepResult result =
        optimizer.step({.lr = 1e-3, .decoupled_lr = 1e-3, .weight_decay = 0.1});
    EXPECT_TRUE(result.ok);
    EXPECT_NEAR(*result.grad_norm, want.span<float>()[2 * step + 1],
                1e-4 * want.span<float>()[2 * step + 1]);
  }
  std::map<std::string, Variable> by_name;
  for (const NamedParameter& parameter : named_parameters(*model_)) {
    by_name[parameter.name] = parameter.variable;
  }
  compare(
      "after3", [&](const std::string& name) -> Tensor& { return by_name.at(name).mutable_data(); },
      1e-4, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, GptGoldenTest,
                         testing::Values("gpt2", "llama", "llama-gqa", "bloom", "gpt-neox"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megatron
