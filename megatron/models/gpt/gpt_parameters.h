#pragma once

#include <vector>

#include "megatron/formats/safetensors.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The parameters of a GPT under Megatron core's names with their whole, unsharded shapes, in the
// order of the model: embeddings, layers, final norm, output layer.
//   REQUIRES: config is resolved and has padded_vocab_size.
std::vector<TensorSpec> gpt_parameters(const TransformerConfig& config);

}  // namespace megatron
