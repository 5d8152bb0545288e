#pragma once

#include <vector>

#include "megatron/formats/safetensors.h"
#include "megatron/transformer/config.h"

namespace megatron {

// gpt_specs() as files of tensors want them: names, whole shapes and dtypes.
//   REQUIRES: config is resolved and has padded_vocab_size.
std::vector<TensorSpec> gpt_parameters(const TransformerConfig& config);

}  // namespace megatron
