#include "megatron/interchange/stored_logits.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/model_chunks.h"
#include "megatron/models/t5/t5_model.h"

namespace megatron {

namespace {

// Reads the weights of a model, or of a chunk of it.
void read_weights(const Model& model, const CheckpointContents& contents) {
  std::vector<CheckpointTensor> targets;
  for (const Parameter& parameter : named_tensors(model)) {
    targets.push_back(whole_tensor(parameter.name, parameter.variable.data()));
  }
  read_section(contents, kWeightsSection, targets, true);
}

}  // namespace

Tensor stored_logits(const CheckpointContents& contents, const TransformerConfig& config,
                     const Tensor& tokens) {
  TransformerConfig plain = config;
  plain.params_dtype = DType::kFloat32;
  plain.attention_dropout = 0.0;
  plain.hidden_dropout = 0.0;
  ModelInput input = {.tokens = tokens, .decoder_tokens = tokens};
  if (plain.tokentypes() > 0) input.token_types = zeros(tokens.shape(), DType::kInt64, Stream{});
  const NoGrad no_grad;
  RandomState random(0);
  if (plain.is_encoder_decoder()) {  // at once
    const T5Model model(plain, Stream{});
    read_weights(model, contents);
    return model.logits(model.hidden_states(input, random)).data();
  }
  Activations states;
  for (int64_t layer = 0; layer < plain.num_layers; ++layer) {
    const ModelChunk chunk = {.first_layer = layer,
                              .num_layers = 1,
                              .has_embedding = layer == 0,
                              .has_head = layer + 1 == plain.num_layers};
    const std::unique_ptr<const Model> model = make_model_chunk(plain, chunk, {}, Stream{});
    read_weights(*model, contents);
    states = model->forward(input, states, random);
    if (chunk.has_head) return model->logits(states.back()).data();
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
