#pragma once

#include <vector>

#include "megatron/core/tensor_spec.h"
#include "megatron/nn/module.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/transformer/config.h"

// The parameters of a model of any kind, in its order and without memory.
//   REQUIRES: config is resolved and has padded_vocab_size.
namespace megatron {

// The parameters of the whole model (gpt_specs(), bert_specs(), t5_specs()), or of a chunk of a GPT
// or a BERT.
std::vector<Parameter> model_specs(const TransformerConfig& config);
std::vector<Parameter> model_specs(const TransformerConfig& config, const ModelChunk& chunk);

// The same as names, dtypes and whole shapes, for tensor files.
std::vector<TensorSpec> model_tensors(const TransformerConfig& config);

}  // namespace megatron
