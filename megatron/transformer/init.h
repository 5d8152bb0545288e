#pragma once

#include <cmath>

#include "megatron/nn/module.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/config.h"

namespace megatron {

// Of everything between the embedding and the logits.
inline Placement placement_of(const TransformerConfig& config, const TensorParallel& tp,
                              Stream stream) {
  return {config.params_dtype, stream, tp.sequence_parallel};
}

// The same of norms of heads: each tensor-parallel rank applies them to heads of its own, so that
// gradients are partial sums without sequence parallelism, too.
inline Placement placement_of_head_norms(const TransformerConfig& config, const TensorParallel& tp,
                                         Stream stream) {
  return {config.params_dtype, stream, tp.size() > 1};
}

// Of QKV, fc1 and the output layer.
inline Init input_init(const TransformerConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std);
}

// Of the projections that end in the residual stream: smaller with depth, so that its variance does
// not grow with the number of layers (Radford et al. 2019, sec. 2.3).
inline Init output_init(const TransformerConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std /
                      std::sqrt(2.0 * static_cast<double>(config.num_layers)));
}

inline Init embedding_init(const TransformerConfig& config) {
  return Init::normal(config.embedding_init_method_std);
}

}  // namespace megatron
