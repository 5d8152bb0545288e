#include "megatron/interchange/stored_logits.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "megatron/interchange/megatron/names.h"
#include "megatron/models/gpt/gpt_model.h"

namespace megatron {

Tensor stored_logits(const CheckpointContents& contents, const TransformerConfig& config,
                     const Tensor& tokens) {
  TransformerConfig plain = config;
  plain.params_dtype = DType::kFloat32;
  plain.attention_dropout = 0.0;
  plain.hidden_dropout = 0.0;
  const NoGrad no_grad;
  RandomState random(0);
  Variable activations;
  for (int64_t layer = 0; layer < plain.num_layers; ++layer) {
    const bool is_last = layer + 1 == plain.num_layers;
    const GptModel model(
        plain,
        {.first_layer = layer, .num_layers = 1, .has_embedding = layer == 0, .has_head = is_last},
        {}, Stream{});
    std::vector<CheckpointTensor> targets;
    for (const NamedParameter& parameter : named_tensors(model)) {
      targets.push_back(whole_tensor(parameter.name, parameter.variable.data()));
    }
    read_section(contents, kWeightsSection, targets, true);
    activations = model.forward({.tokens = tokens}, activations, random);
    if (is_last) return model.logits(activations).data();
  }
  return {};
}

int64_t stored_logits_bytes(const CheckpointContents& contents) {
  std::map<std::optional<int64_t>, int64_t> elements;  // by layer; none: outside of layers
  int64_t largest = 0;
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    std::optional<int64_t> layer;
    without_layer(name, layer);
    elements[layer] += tensor.shape.numel();
    largest = std::max(largest, tensor.shape.numel());
  }
  int64_t layer = 0;
  for (const auto& [number, count] : elements) {
    if (number) layer = std::max(layer, count);
  }
  // In fp32, and the tensor that is being read in its own dtype and as it is put together.
  return 4 * (elements[std::nullopt] + layer) + 2 * 8 * largest;
}

}  // namespace megatron
