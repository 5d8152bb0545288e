#pragma once

#include <string>

#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/layer_config.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/lora.h"

namespace megatron {

// The dense feed-forward part of a layer: fc2(act(fc1(x))). The kernel of the activation adds the
// bias of fc1.
//
//   x [s, b, h]   linear_fc1 [f/tp or 2f/tp, h]   linear_fc2 [h, f/tp]   y [s, b, h]
//
// x and y [s/tp, b, h] with sequence parallelism. --recompute-modules mlp stores x alone,
// activation drops act(fc1(x)) between the passes.
class Mlp final : public FeedForward {
 public:
  // `name` is that of this part in the model: "decoder.layers.3.mlp".
  Mlp(const LayerConfig& config, const std::string& name, const TensorParallel& tp, Stream stream);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;

 private:
  // Without the bias of fc2.
  Variable product(const Variable& x, const ForwardContext& context) const;

  TensorParallel tp_;
  Activation activation_;
  bool is_recomputed_;
  bool drops_activation_;
  bool may_split_k_;  // the next norm sums the output
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
  LoraDropout fc1_adapter_dropout_;
  LoraDropout fc2_adapter_dropout_;
};

}  // namespace megatron
