#include "megatron/interchange/stored_logits.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/t5/t5_model.h"

namespace megatron {

namespace {

GptInput input_of(const GptModel&, const Tensor& tokens) { return {.tokens = tokens}; }

BertInput input_of(const BertModel& model, const Tensor& tokens) {
  BertInput input = {.tokens = tokens};
  if (model.config().tokentypes() > 0) {
    input.token_types = zeros(tokens.shape(), DType::kInt64, Stream{});
  }
  return input;
}

// The logits of a model whose chunks are like those of Model.
template <class Model>
Tensor logits_by_layer(const CheckpointContents& contents, const TransformerConfig& config,
                       const Tensor& tokens) {
  const NoGrad no_grad;
  RandomState random(0);
  Variable activations;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool is_last = layer + 1 == config.num_layers;
    const Model model(
        config,
        {.first_layer = layer, .num_layers = 1, .has_embedding = layer == 0, .has_head = is_last},
        {}, Stream{});
    std::vector<CheckpointTensor> targets;
    for (const NamedParameter& parameter : named_tensors(model)) {
      targets.push_back(whole_tensor(parameter.name, parameter.variable.data()));
    }
    read_section(contents, kWeightsSection, targets, true);
    activations = model.forward(input_of(model, tokens), activations, random);
    if (is_last) return model.logits(activations).data();
  }
  return {};
}

// Of a whole T5 at once, whose encoder and decoder read the same tokens.
Tensor t5_logits(const CheckpointContents& contents, const TransformerConfig& config,
                 const Tensor& tokens) {
  const NoGrad no_grad;
  const T5Model model(config, Stream{});
  std::vector<CheckpointTensor> targets;
  for (const NamedParameter& parameter : named_parameters(model)) {
    targets.push_back(whole_tensor(parameter.name, parameter.variable.data()));
  }
  read_section(contents, kWeightsSection, targets, true);
  RandomState random(0);
  const T5Input input = {.encoder_tokens = tokens, .decoder_tokens = tokens};
  return model.logits(model.forward(input, {}, random).decoder).data();
}

}  // namespace

Tensor stored_logits(const CheckpointContents& contents, const TransformerConfig& config,
                     const Tensor& tokens) {
  TransformerConfig plain = config;
  plain.params_dtype = DType::kFloat32;
  plain.attention_dropout = 0.0;
  plain.hidden_dropout = 0.0;
  switch (plain.kind) {
    case ModelKind::kGpt:
      return logits_by_layer<GptModel>(contents, plain, tokens);
    case ModelKind::kBert:
      return logits_by_layer<BertModel>(contents, plain, tokens);
    case ModelKind::kT5:
      return t5_logits(contents, plain, tokens);
  }
  throw InternalError("stored_logits: unknown kind of model");
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
