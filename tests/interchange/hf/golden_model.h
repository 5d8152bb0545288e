#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/model_specs.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/support/device_under_test.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"

namespace megatron {

// The largest |got - want|, and the norm of the difference over the norm of `want`.
struct Deviation {
  double absolute = 0;
  double relative = 0;
};

inline Deviation deviation(const Tensor& got, const Tensor& want) {
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

// Logits [s, b, v + padding] as transformers has them: [b, s, v] of `want`.
inline Tensor like_theirs(const Tensor& logits, const Tensor& want) {
  Tensor y(want.shape(), DType::kFloat32, Stream{});
  const int64_t s = logits.size(0);
  const int64_t b = logits.size(1);
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      const float* row = logits.span<float>().data() + (i * b + j) * logits.size(2);
      std::copy_n(row, want.size(2), y.span<float>().data() + (j * s + i) * want.size(2));
    }
  }
  return y;
}

// The folder of a golden model: of tests/golden/hf, or of the larger collection beside the
// repository.
inline std::filesystem::path golden_folder(const std::string& name) {
  const std::filesystem::path own = std::filesystem::path(source_path("tests/golden/hf")) / name;
  return std::filesystem::exists(own) ? own : shared_data("golden/hf2/" + name);
}

// A golden model without dropout, on the device of the program, and what transformers
// computed with it.
template <class Model>
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name)
      : GoldenModel(name, read_hf_config(golden_folder(name))) {}

  const Model& operator*() const { return *model_; }
  const Model* operator->() const { return model_.get(); }

  Tensor expected(const std::string& name) const { return copy_of(expected_.at(name)); }
  // The same as an int64 tensor of its own.
  Tensor integers(const std::string& name) const {
    const Tensor stored = expected(name);
    return tensor_of(std::span<const int64_t>(stored.span<int64_t>()), stored.shape());
  }

  void expect_gradients(const Variable& loss) const {
    backward(loss);
    const std::map<std::string, Variable> by_name = parameters();
    // A gradient that cancels to rounding noise (a key's bias) is compared absolutely.
    compare(
        "grad", [&](const std::string& name) { return by_name.at(name).grad(); }, 1e-7, 1e-4);
  }

  void expect_three_adamw_steps(const std::function<Variable()>& loss) const {
    FlatParameters flat(optimized_parameters(*model_), {});
    OptimizerConfig config;
    config.adam_beta1 = 0.9;
    config.adam_beta2 = 0.95;
    config.adam_eps = 1e-8;
    config.clip_grad = 1.0;
    Optimizer optimizer(flat, config);
    const Tensor want = expected("adamw.loss_and_gradnorm");
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
    const bool has_weights_after = after_steps_ || expected_.find("after3." + any_name());
    if (!has_weights_after) return;
    const std::map<std::string, Variable> by_name = parameters();
    compare(
        "after3", [&](const std::string& name) { return by_name.at(name).data(); }, 1e-4, 1e-4);
  }

 private:
  GoldenModel(const std::string& name, const HfModel& hf)
      : names_(hf_names(*hf.family, hf.transformer)),
        vocab_size_(hf.vocab_size),
        expected_(golden_folder(name) / "expected.safetensors") {
    TransformerConfig config = hf.transformer;
    config.params_dtype = DType::kFloat32;
    config.hidden_dropout = 0;
    config.attention_dropout = 0;
    specs_ = model_tensors(config);
    model_ = std::make_unique<Model>(config, stream_under_test());
    const std::map<std::string, Variable> by_name = parameters();
    EXPECT_EQ(by_name.size(), specs_.size());
    const std::filesystem::path later = golden_folder(name) / "after3.safetensors";
    if (std::filesystem::exists(later)) after_steps_.emplace(later);
    const auto file = std::make_shared<const ShardedWeights>(golden_folder(name));
    for (const auto& [tensor_name, tensor] : open_mapped(file, names_, specs_, sizes())) {
      Variable parameter = by_name.at(tensor_name);
      copy_into(parameter.mutable_data(), read_whole(tensor).to(stream_under_test()));
    }
  }

  // One of their tensors.
  std::string any_name() const { return mapped(names_, specs_).front().theirs.front(); }

  // Some folders keep the weights after the steps in a file of their own.
  const SafetensorsFile::Entry* find(const std::string& name) const {
    const SafetensorsFile::Entry* found = expected_.find(name);
    return found == nullptr && after_steps_ ? after_steps_->find(name) : found;
  }

  std::map<std::string, Variable> parameters() const {
    std::map<std::string, Variable> by_name;
    for (const Parameter& parameter : named_tensors(*model_)) {
      by_name[parameter.name] = parameter.variable;
    }
    return by_name;
  }

  LayoutSizes sizes() const {
    const TransformerConfig& config = model_->config();
    return {.num_attention_heads = config.num_attention_heads,
            .num_query_groups = config.num_query_groups,
            .kv_channels = config.kv_channels,
            .vocab_size = vocab_size_};
  }

  // Compares tensors of ours with `<prefix>.<their name>` of the expectations.
  void compare(const std::string& prefix, const std::function<Tensor(const std::string&)>& ours,
               double absolute, double relative) const {
    size_t compared = 0;
    std::vector<TensorSpec> trained;  // no buffers
    for (const Parameter& parameter : named_parameters(*model_))
      trained.push_back(parameter.whole());
    for (const TensorMapping& tensor : mapped(names_, trained)) {
      for (size_t part = 0; part < tensor.theirs.size(); ++part) {
        // GPT-NeoX's output layer has one name in files and another in the running model.
        const std::string& name = tensor.theirs[part];
        const SafetensorsFile::Entry* want =
            find(prefix + "." + (name == "embed_out.weight" ? "lm_head.weight" : name));
        ASSERT_NE(want, nullptr) << name;
        const Tensor here = ours(tensor.ours.name).to(Stream{});
        const Tensor got = to_theirs(tensor, part, here.view(), sizes());
        ASSERT_EQ(got.shape(), want->spec.shape) << name;
        const Deviation d = deviation(got, copy_of(want->view));
        EXPECT_LE(std::min(d.absolute / absolute, d.relative / relative), 1)
            << prefix << "." << name << ": absolute " << d.absolute << ", relative " << d.relative;
        ++compared;
      }
    }
    EXPECT_GE(compared, trained.size());
  }

  NameTable names_;
  int64_t vocab_size_;
  SafetensorsFile expected_;
  std::optional<SafetensorsFile> after_steps_;
  std::unique_ptr<Model> model_;
  std::vector<TensorSpec> specs_;
};

}  // namespace megatron
