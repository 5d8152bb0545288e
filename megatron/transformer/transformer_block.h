#pragma once

#include <memory>
#include <vector>

#include "megatron/transformer/transformer_layer.h"

namespace megatron {

// A stack of layers and the norm that follows the last.
class TransformerBlock final : public Module {
 public:
  TransformerBlock(const TransformerConfig& config, Stream stream);

  // x [s, b, h] -> [s, b, h] in params_dtype. Recomputes as the config says, in grad mode.
  Variable forward(const Variable& x, const ForwardContext& context) const;

 private:
  // Layers [begin, end) one after the other, or as one recomputed region.
  Variable run(const Variable& x, int64_t begin, int64_t end, const ForwardContext& context) const;
  Variable run_recomputed(const Variable& x, int64_t begin, int64_t end,
                          const ForwardContext& context) const;

  RecomputeGranularity recompute_granularity_;
  RecomputeMethod recompute_method_;
  int64_t recompute_num_layers_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  Norm final_layernorm_;
};

}  // namespace megatron
