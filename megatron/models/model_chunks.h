#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/models/bert/bert_heads.h"
#include "megatron/models/model.h"
#include "megatron/parallel/config.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// This rank's chunks of a model of the config's kind, in the order of the layers, with undefined
// parameters. `heads` are a BERT's.
//   REQUIRES: config is resolved and has padded_vocab_size; layout_problems() finds none.
std::vector<std::unique_ptr<const Model>> make_model_chunks(const TransformerConfig& config,
                                                            const ParallelConfig& layout,
                                                            const ParallelContext& parallel,
                                                            Stream stream,
                                                            const BertHeads& heads = {});
// A chunk of a model with one stack, likewise.
std::unique_ptr<const Model> make_model_chunk(const TransformerConfig& config,
                                              const ModelChunk& chunk,
                                              const ParallelContext& parallel, Stream stream,
                                              const BertHeads& heads = {});
// Reasons why the layers cannot have this layout, one sentence each; empty if they can.
std::vector<std::string> layout_problems(const TransformerConfig& config,
                                         const ParallelConfig& layout);

}  // namespace megatron
