#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/tanh.h"
#include "megatron/tensor/tensor.h"
#include "megatron/transformer/layer_recipe.h"

namespace megatron {

// Adds tanh(x weight^T), and has the auxiliary loss 0.3 mean(tanh(x gate^T)).
class FeedForwardWithLoss final : public FeedForward {
 public:
  explicit FeedForwardWithLoss(int64_t hidden_size)
      : weight_(add_parameter("weight", {hidden_size, hidden_size},
                              {.role = ParameterRole::kMatrix, .init = Init::normal(0.5)}, {})),
        gate_(add_parameter("gate", {1, hidden_size},
                            {.role = ParameterRole::kMatrix, .init = Init::normal(0.5)}, {})) {}

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override {
    if (context.auxiliary_losses != nullptr) {
      const Variable score = tanh(linear(x, gate_, {}));  // [s, b, 1]
      const Tensor all = full({x.size(1), x.size(0)}, 1, DType::kFloat32, Stream{});
      context.auxiliary_losses->push_back(
          scale(masked_mean(reshape(score, {x.size(0), x.size(1)}), all), 0.3f));
    }
    return {.y = tanh(linear(x, weight_, {})), .bias = {}};
  }

 private:
  Variable weight_;
  Variable gate_;
};

// A layer of the recipe with FeedForwardWithLoss in place of the MLP.
inline std::unique_ptr<TransformerLayer> make_layer_with_loss(const LayerRecipe& recipe,
                                                              const TensorParallel& tp,
                                                              Stream stream) {
  std::vector<ResidualBranch> branches = make_branches(recipe, tp, stream);
  branches.back().part = std::make_unique<FeedForwardWithLoss>(recipe.config.hidden_size);
  return std::make_unique<TransformerLayer>(std::move(branches), tp);
}

}  // namespace megatron
