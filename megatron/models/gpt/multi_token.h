#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "megatron/nn/layers.h"
#include "megatron/parallel/pipeline/boundary.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/transformer/layer_recipe.h"

namespace megatron {

// The number of the layer of depth k = 1, 2, ..: it counts on from those of the decoder.
int64_t layer_of_depth(const TransformerConfig& config, int64_t k);

// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, sec. 2.2): behind a decoder, depth k = 1,
// 2, .. predicts the token k + 1 further on from the hidden states of the depth before and from the
// token k further on. Every depth has a layer of the kind of the decoder's last one, or all have
// the same (--mtp-use-repeated-layer). Parameters of depth k, under layers.<k - 1>:
//
//   enorm, hnorm       [h]            of the embedding, and of the hidden states
//   eh_proj            [h / tp, 2 h]  of both, in this order; without bias
//   mtp_model_layer    a layer
//   final_layernorm    [h]
class MultiTokenPrediction final : public Module {
 public:
  MultiTokenPrediction(const TransformerConfig& config, const Stack& stack,
                       const TensorParallel& tp, Stream stream, const LayerMaker& make);

  // hidden    [s, b, h]  of the decoder, behind its final norm
  // embedded  gives the embedding [s, b, h] of the tokens k further on
  // -> the hidden states of each depth, as `hidden`; with sequence parallelism s stands for s/tp
  Activations forward(const Variable& hidden, const std::function<Variable(int64_t k)>& embedded,
                      const ForwardContext& context) const;

  // Depth k alone: its states, from those of the depth before and the embedding of the tokens k
  // further on. A cache of generation has its layer as layer_of_depth().
  Variable forward_depth(int64_t k, const Variable& states, const Variable& embedded,
                         const ForwardContext& context) const;

 private:
  struct Depth final : Module {
    Depth(const TransformerConfig& config, const LayerRecipe& recipe, const TensorParallel& tp,
          Stream stream, const LayerMaker& make);
    Variable forward(const Variable& hidden, const Variable& embedded,
                     const ForwardContext& context) const;
    // The layer as a region that the backward pass computes again.

    TensorParallel tp;
    bool is_recomputed;
    DType stream_dtype;  // of the residual stream
    std::unique_ptr<Norm> enorm;
    std::unique_ptr<Norm> hnorm;
    ColumnParallelLinear eh_proj;
    std::unique_ptr<TransformerLayer> mtp_model_layer;
    std::unique_ptr<Norm> final_layernorm;
  };

  int64_t num_depths_;
  bool is_detached_;
  std::vector<std::unique_ptr<Depth>> layers_;
};

}  // namespace megatron
