// The T5 model against transformers' T5ForConditionalGeneration: loss, logits, every gradient and
// three AdamW steps (tests/golden/hf/README.md says how they were made). On the CPU: attention with
// relative positions has no CUDA kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/hf/t5_names.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/support/source_path.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kVocabulary = 131;

// What differs between the published versions.
struct Version {
  const char* folder;
  Activation activation;
  bool scale_decoder_outputs;
};
void PrintTo(const Version& version, std::ostream* out) { *out << version.folder; }

TransformerConfig config_of(const Version& version) {
  TransformerConfig c;
  c.num_layers = 3;
  c.decoder_num_layers = 3;
  c.hidden_size = 48;
  c.ffn_hidden_size = 96;
  c.num_attention_heads = 4;
  c.num_query_groups = 4;
  c.kv_channels = 12;
  c.seq_length = 24;
  c.decoder_seq_length = 12;
  c.max_position_embeddings = 24;
  c.padded_vocab_size = kVocabulary;
  c.position_embedding_type = PositionEmbedding::kRelative;
  c.normalization = Normalization::kRmsNorm;
  c.norm_epsilon = 1e-6;
  c.add_bias_linear = false;
  c.add_lm_head_bias = false;
  c.activation = version.activation;
  c.softmax_scale = 1.0;
  c.scale_decoder_outputs = version.scale_decoder_outputs;
  c.hidden_dropout = 0;
  c.attention_dropout = 0;
  c.params_dtype = DType::kFloat32;
  return c;
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

// [s, b, v] -> [b, s, v]
Tensor by_sample(const Tensor& x) {
  const int64_t s = x.size(0);
  const int64_t b = x.size(1);
  const int64_t v = x.size(2);
  Tensor y({b, s, v}, DType::kFloat32, Stream{});
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      std::copy_n(x.span<float>().data() + (i * b + j) * v, v,
                  y.span<float>().data() + (j * s + i) * v);
    }
  }
  return y;
}

class T5GoldenTest : public testing::TestWithParam<Version> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder =
        source_path("tests/golden/hf") / std::filesystem::path(GetParam().folder);
    const TransformerConfig config = config_of(GetParam());
    expected_ = std::make_unique<SafetensorsFile>(folder / "expected.safetensors");
    model_ = std::make_unique<T5Model>(config, Stream{});
    names_ = hf_t5_names(config);
    for (const ParameterSpec& spec : t5_specs(config)) {
      specs_.push_back({spec.name, spec.dtype, spec.shape});
    }
    std::map<std::string, Variable> by_name = parameters();
    ASSERT_EQ(by_name.size(), specs_.size());
    const auto file = std::make_shared<const ShardedWeights>(folder);
    for (const auto& [name, tensor] : open_hf_weights(file, names_, specs_, kSizes)) {
      copy_into(by_name.at(name).mutable_data(), read_whole(tensor));
    }
    read_batch();
  }

  // The decoder reads the labels one place later, behind the padding with which it begins.
  void read_batch() {
    const Tensor attends = integers("input.attention_mask");
    labels_ = integers("input.labels");
    Tensor decoder_tokens(labels_.shape(), DType::kInt64, Stream{});
    loss_mask_ = Tensor(labels_.shape(), DType::kFloat32, Stream{});
    input_.encoder_padding_mask = Tensor(attends.shape(), DType::kBool, Stream{});
    for (size_t i = 0; i < static_cast<size_t>(attends.numel()); ++i) {
      input_.encoder_padding_mask.span<bool>()[i] = attends.span<int64_t>()[i] == 0;
    }
    const auto labels = labels_.span<int64_t>();
    const auto length = static_cast<size_t>(labels_.size(1));
    for (size_t i = 0; i < labels.size(); ++i) {
      loss_mask_.span<float>()[i] = labels[i] >= 0 ? 1.0f : 0.0f;
      decoder_tokens.span<int64_t>()[i] = i % length == 0 ? 0 : std::max<int64_t>(labels[i - 1], 0);
    }
    input_.encoder_tokens = integers("input.input_ids");
    input_.decoder_tokens = decoder_tokens;
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

  Variable hidden() { return model_->forward(input_, {}, random_).decoder; }
  Variable loss() { return t5_loss(*model_, hidden(), labels_, loss_mask_); }

  // Compares tensors of ours with `<prefix>.<their name>` of the expectations.
  template <class F>
  void compare(const std::string& prefix, const F& tensor_of_name, double absolute,
               double relative) {
    for (const MappedTensor& tensor : mapped(names_, specs_)) {
      for (size_t part = 0; part < tensor.theirs.size(); ++part) {
        const FileTensor* want = expected_->find(prefix + "." + tensor.theirs[part]);
        ASSERT_NE(want, nullptr) << tensor.theirs[part];
        const Deviation d =
            deviation(to_theirs(tensor, part, tensor_of_name(tensor.ours.name).view(), kSizes),
                      copy_of(want->view));
        EXPECT_LE(std::min(d.absolute / absolute, d.relative / relative), 1)
            << prefix << "." << tensor.theirs[part] << ": absolute " << d.absolute << ", relative "
            << d.relative;
      }
    }
  }

  static constexpr LayoutSizes kSizes = {.num_attention_heads = 4,
                                         .num_query_groups = 4,
                                         .kv_channels = 12,
                                         .vocab_size = kVocabulary};

  std::unique_ptr<SafetensorsFile> expected_;
  std::unique_ptr<T5Model> model_;
  NameTable names_;
  std::vector<TensorSpec> specs_;
  T5Input input_;
  Tensor labels_;
  Tensor loss_mask_;
  RandomState random_{1234};
};

TEST_P(T5GoldenTest, LossAndLogits) {
  EXPECT_NEAR(loss().data().item(), copy_of(expected_->at("loss")).item(), 1e-5);
  const NoGrad no_grad;
  const Tensor logits = by_sample(model_->logits(hidden()).data());
  EXPECT_LE(deviation(logits, copy_of(expected_->at("logits"))).absolute, 1e-4);
}

TEST_P(T5GoldenTest, EveryGradient) {
  backward(loss());
  const std::map<std::string, Variable> by_name = parameters();
  // Buckets of distances that no pair of tokens has get no gradient at all.
  compare(
      "grad", [&](const std::string& name) { return by_name.at(name).grad(); }, 1e-7, 1e-4);
}

TEST_P(T5GoldenTest, ThreeAdamWSteps) {
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

INSTANTIATE_TEST_SUITE_P(Versions, T5GoldenTest,
                         testing::Values(Version{"t5-v1.0", Activation::kRelu, true},
                                         Version{"t5-v1.1", Activation::kGegluTanh, false}),
                         [](const auto& one) {
                           return one.param.scale_decoder_outputs ? "T5_1_0" : "T5_1_1";
                         });

}  // namespace
}  // namespace megatron
