#pragma once

#include <vector>

#include "megatron/core/tensor_spec.h"
#include "megatron/nn/module.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/transformer/config.h"

// The parameters of a model of any kind, in its order and without memory.
//   REQUIRES: config is resolved and has padded_vocab_size.
namespace megatron {

// Of the whole model: gpt_specs(), bert_specs(), t5_specs(); or of a chunk of a GPT or a BERT.
std::vector<ParameterSpec> model_specs(const TransformerConfig& config);
std::vector<ParameterSpec> model_specs(const TransformerConfig& config, const ModelChunk& chunk);

// Names, whole shapes and dtypes alone, as files of tensors want them.
std::vector<TensorSpec> model_tensors(const TransformerConfig& config);

}  // namespace megatron
