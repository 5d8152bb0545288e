#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megatron/nn/fp8_stacked_weight.h"
#include "megatron/ops/expert_mlp.h"
#include "megatron/transformer/layer_config.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/router.h"

namespace megatron {

// The matrices of a rank's experts, as one tensor each. Ranks along MeshAxis::kExpert have other
// experts, those along kExpertTensor a share of each.
//
//   linear_fc1.weight  [E, f or 2f, h]   linear_fc1.bias  [E, f or 2f]
//   linear_fc2.weight  [E, h, f]         linear_fc2.bias  [E, h]
//   linear_fc1.adapter, linear_fc2.adapter: linear_in.weight  [E, rank, in]
//                                           linear_out.weight  [E, out, rank]
class Experts final : public Module {
 public:
  Experts(const LayerConfig& config, const TensorParallel& tp, Stream stream);

  // The sum over the experts of each of this rank's tokens.   x [T, h] -> [T, h]
  // Generation has no gradients. With FP8 Fp8Scaling::quantize_weights() comes before.
  Variable forward(const Variable& x, const RoutedTokens& routed, bool is_generation) const;

 private:
  ExpertMatrices matrices() const;

  ExpertMlpOptions options_;
  TensorParallel experts_;  // ranks with other experts, and those that share them: a rank has a
  TensorParallel shares_;   // slice of the tokens of either group
  bool has_equal_tokens_;   // tensor-parallel ranks without slices of the sequence: the same tokens
  ExpertMatrices matrices_;
  std::unique_ptr<Fp8StackedWeight> fc1_fp8_, fc2_fp8_;  // null without FP8
};

// A mixture of experts: a router sends each token to some of the experts, whose outputs are added
// by its weights (Shazeer et al. 2017, arXiv:1701.06538); shared experts read every token
// (DeepSeekMoE, arXiv:2401.06066).
//
//   y = sum over the token's experts e of weight_e fc2_e(act(fc1_e(x))) + shared(x)
//
// --recompute-modules moe stores x alone, shared_experts does so for the shared experts.
// shared(x) is multiplied by sigmoid(x gate^T) with moe_shared_expert_gate. x, y [s, b, h],
// [s/tp, b, h] with sequence parallelism.
class ExpertMlp final : public FeedForward {
 public:
  // `name` is that of this part in the model: "decoder.layers.3.mlp", of layer `layer`.
  ExpertMlp(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
            Stream stream, int64_t layer = 0);

  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;

 private:
  Variable output(const Variable& x, const ForwardContext& context) const;

  bool is_recomputed_;
  Router router_;
  Experts experts_;
  std::optional<Mlp> shared_experts_;
  Variable gate_weight_;  // [1, h]; undefined: the shared experts have no gate
};

}  // namespace megatron
