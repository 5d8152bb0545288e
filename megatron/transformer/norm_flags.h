#pragma once

#include "megatron/nn/layers.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The Norm that the config's flags describe.
struct NormFlags {
  Norm::Kind kind;
  NormOptions options;
};

inline NormFlags norm_flags(const TransformerConfig& config) {
  return {config.normalization == Normalization::kRmsNorm ? Norm::Kind::kRmsNorm
                                                          : Norm::Kind::kLayerNorm,
          {.epsilon = static_cast<float>(config.norm_epsilon),
           .one_plus_weight = config.apply_layernorm_1p}};
}

}  // namespace megatron
