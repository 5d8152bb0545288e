#pragma once

#include <cmath>
#include <memory>

#include "megatron/nn/layers.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// Placement of parameters between the embedding and the logits.
inline Placement placement_of(const LayerConfig& config, const TensorParallel& tp, Stream stream) {
  return {config.params_dtype, stream, tp.sequence_parallel};
}

// Placement of embeddings, of the norm before the logits and of the output layer.
inline Placement outer_placement(const LayerConfig& config, Stream stream) {
  return {.dtype = config.params_dtype, .stream = stream, .is_embedding_or_output = true};
}

// The Norm of the config's flags.
struct NormFlags {
  Norm::Kind kind;
  NormOptions options;
};
inline NormFlags norm_flags(const NormConfig& config) {
  return {config.normalization == Normalization::kRmsNorm ? Norm::Kind::kRmsNorm
          : config.add_norm_bias                          ? Norm::Kind::kLayerNorm
                                                          : Norm::Kind::kLayerNormNoBias,
          {.epsilon = static_cast<float>(config.norm_epsilon),
           .one_plus_weight = config.apply_layernorm_1p}};
}

// A norm of the residual stream.
inline std::unique_ptr<Norm> make_norm(const LayerConfig& config, const TensorParallel& tp,
                                       Stream stream) {
  const auto [kind, options] = norm_flags(config);
  return std::make_unique<Norm>(config.hidden_size, kind, options,
                                placement_of(config, tp, stream));
}

// Initial values of QKV, fc1 and the output layer.
inline Init input_init(const InitConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std);
}

// Initial values of projections into the residual stream. Their standard deviation shrinks with
// depth, so that the variance of the stream does not grow with the number of layers (Radford et al.
// 2019, sec. 2.3).
inline Init output_init(const LayerConfig& config) {
  if (config.init_method_xavier_uniform) return Init::xavier_uniform();
  return Init::normal(config.init_method_std /
                      std::sqrt(2.0 * static_cast<double>(config.num_layers)));
}

inline Init embedding_init(const InitConfig& config) {
  return Init::normal(config.embedding_init_method_std);
}

}  // namespace megatron
