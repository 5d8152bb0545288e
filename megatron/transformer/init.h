#pragma once

#include <cmath>

#include "megatron/nn/module.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/config.h"

namespace megatron {

// For parameters between the embedding and the logits.
inline Placement placement_of(const TransformerConfig& config, const TensorParallel& tp,
                              Stream stream) {
  return {config.params_dtype, stream, tp.sequence_parallel};
}

// For embeddings, the norm before the logits and the output layer.
inline Placement outer_placement(const TransformerConfig& config, Stream stream) {
  return {.dtype = config.params_dtype, .stream = stream, .is_embedding_or_output = true};
}

// For norms of heads. Each tensor-parallel rank applies them to its own heads, so that gradients
// are partial sums without sequence parallelism, too.
inline Placement placement_of_head_norms(const TransformerConfig& config, const TensorParallel& tp,
                                         Stream stream) {
  return {config.params_dtype, stream, tp.size() > 1};
}

// For QKV, fc1 and the output layer.
inline Init input_init(const TransformerConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std);
}

// For the projections that end in the residual stream. It shrinks with depth, so that the variance
// of the stream does not grow with the number of layers (Radford et al. 2019, sec. 2.3).
inline Init output_init(const TransformerConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std /
                      std::sqrt(2.0 * static_cast<double>(config.num_layers)));
}

inline Init embedding_init(const TransformerConfig& config) {
  return Init::normal(config.embedding_init_method_std);
}

}  // namespace megatron
