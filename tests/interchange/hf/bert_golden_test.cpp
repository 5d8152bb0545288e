// The BERT model against transformers' MegatronBertForPreTraining: losses, logits, every gradient
// and three AdamW steps, on the device of the program (tests/golden/hf/README.md says how they were
// made).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "megatron/interchange/hf/bert_names.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/support/device_under_test.h"
#include "tests/support/source_path.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kVocabulary = 131;

TransformerConfig config_of_golden() {
  TransformerConfig config;
  config.num_layers = 3;
  config.hidden_size = 48;
  config.ffn_hidden_size = 192;
  config.num_attention_heads = 4;
  config.num_query_groups = 4;
  config.kv_channels = 12;
  config.seq_length = 24;
  config.max_position_embeddings = 64;
  config.padded_vocab_size = kVocabulary;
  config.norm_epsilon = 1e-12;
  config.activation = Activation::kGeluErf;
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  config.params_dtype = DType::kFloat32;
  return config;
}

// The largest difference, and the norm of the difference over the norm of `want`.
struct Deviation {
  double absolute = 0;
  double relative = 0;
};

Deviation deviation(const Tensor& got, const Tensor& want) {
  Deviation result;
  double difference = 0;
  double total = 0;
  for (size_t i = 0; i < static_cast<size_t>(want.numel()); ++i) {
    const double w = want.span<float>()[i];
    const double d = static_cast<double>(got.span<float>()[i]) - w;
    result.absolute = std::max(result.absolute, std::abs(d));
    difference += d * d;
    total += w * w;
  }
  result.relative = std::sqrt(difference) / std::max(std::sqrt(total), 1e-12);
  return result;
}

class BertGoldenTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    const std::filesystem::path folder = source_path("tests/golden/hf/megatron-bert");
    expected_ = std::make_unique<SafetensorsFile>(folder / "expected.safetensors");
    model_ = std::make_unique<BertModel>(config_of_golden(), stream_under_test());
    for (const ParameterSpec& spec : bert_specs(config_of_golden())) {
      specs_.push_back({spec.name, spec.dtype, spec.shape});
    }
    std::map<std::string, Variable> by_name = parameters();
    ASSERT_EQ(by_name.size(), specs_.size());
    const auto file = std::make_shared<const ShardedWeights>(folder);
    for (const auto& [name, tensor] : open_hf_weights(file, hf_bert_names(), specs_, sizes())) {
      copy_into(by_name.at(name).mutable_data(), read_whole(tensor).to(stream_under_test()));
    }

    input_.tokens = integers("input.input_ids");
    input_.token_types = integers("input.token_type_ids");
    const Tensor attends = integers("input.attention_mask");
    input_.padding_mask = Tensor(attends.shape(), DType::kBool, Stream{});
    labels_ = integers("input.labels");
    loss_mask_ = Tensor(labels_.shape(), DType::kFloat32, Stream{});
    for (size_t i = 0; i < static_cast<size_t>(labels_.numel()); ++i) {
      input_.padding_mask.span<bool>()[i] = attends.span<int64_t>()[i] == 0;
      loss_mask_.span<float>()[i] = labels_.span<int64_t>()[i] >= 0 ? 1.0f : 0.0f;
    }
    is_random_ = integers("input.next_sentence_label");
  }

  Tensor integers(const std::string& name) const {
    const Tensor stored = copy_of(expected_->at(name));
    return tensor_of(std::span<const int64_t>(stored.span<int64_t>()), stored.shape());
  }

  std::map<std::string, Variable> parameters() const {
    std::map<std::string, Variable> by_name;
    for (const NamedParameter& parameter : named_parameters(*model_)) {
      by_name[parameter.name] = parameter.variable;
    }
    return by_name;
  }

  static LayoutSizes sizes() {
    return {.num_attention_heads = 4,
            .num_query_groups = 4,
            .kv_channels = 12,
            .vocab_size = kVocabulary};
  }

  Variable hidden() { return model_->forward(input_, Variable(), random_); }
  Variable loss() {
    const Stream stream = model_->stream();
    const BertLosses losses = bert_losses(*model_, hidden(), labels_.to(stream),
                                          loss_mask_.to(stream), is_random_.to(stream));
    return add(losses.lm, losses.sop);
  }

  // Compares tensors of ours with `<prefix>.<their name>` of the expectations.
  template <class F>
  void compare(const std::string& prefix, const F& tensor_of_name, double absolute,
               double relative) {
    for (const MappedTensor& tensor : mapped(hf_bert_names(), specs_)) {
      for (size_t part = 0; part < tensor.theirs.size(); ++part) {
        const FileTensor* want = expected_->find(prefix + "." + tensor.theirs[part]);
        ASSERT_NE(want, nullptr) << tensor.theirs[part];
        const Tensor here = tensor_of_name(tensor.ours.name).to(Stream{});
        const Deviation d =
            deviation(to_theirs(tensor, part, here.view(), sizes()), copy_of(want->view));
        EXPECT_LE(std::min(d.absolute / absolute, d.relative / relative), 1)
            << prefix << "." << tensor.theirs[part] << ": absolute " << d.absolute << ", relative "
            << d.relative;
      }
    }
  }

  std::unique_ptr<SafetensorsFile> expected_;
  std::unique_ptr<BertModel> model_;
  std::vector<TensorSpec> specs_;
  BertInput input_;
  Tensor labels_;
  Tensor loss_mask_;
  Tensor is_random_;
  RandomState random_{1234};
};

TEST_F(BertGoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), copy_of(expected_->at("loss")).item(), 1e-5);

  const NoGrad no_grad;
  const Variable last = hidden();
  const Tensor binary = model_->binary_logits(last).data().to(Stream{});
  EXPECT_LE(deviation(binary, copy_of(expected_->at("seq_relationship_logits"))).absolute, 1e-4);

  const Tensor logits = model_->logits(last).data().to(Stream{});   // [s, b, v]
  const Tensor want = copy_of(expected_->at("prediction_logits"));  // [b, s, v]
  Tensor got = empty_like(want);
  const int64_t s = logits.size(0);
  const int64_t b = logits.size(1);
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      const float* row = logits.span<float>().data() + (i * b + j) * kVocabulary;
      std::copy_n(row, kVocabulary, got.span<float>().data() + (j * s + i) * kVocabulary);
    }
  }
  EXPECT_LE(deviation(got, want).absolute, 1e-4);
}

TEST_F(BertGoldenTest, EveryGradient) {
  backward(loss());
  const std::map<std::string, Variable> by_name = parameters();
  // A gradient that cancels to rounding noise (a key's bias) is compared absolutely.
  compare(
      "grad", [&](const std::string& name) { return by_name.at(name).grad(); }, 1e-7, 1e-4);
}

TEST_F(BertGoldenTest, ThreeAdamWSteps) {
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
  const std::map<std::string, Variable> by_name = parameters();
  compare(
      "after3", [&](const std::string& name) { return by_name.at(name).data(); }, 1e-4, 1e-4);
}

}  // namespace
}  // namespace megatron
