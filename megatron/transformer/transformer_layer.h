#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/nn/layers.h"
#include "megatron/transformer/layer_part.h"

namespace megatron {

// The input of a branch's norm, or of its part if it has no norm.
enum class BranchInput {
  kStream,      // the residual stream after the branches before it
  kLayerInput,  // x, the input of the layer
  kFirstNorm,   // the output of the first branch's norm
};

// r + dropout(multiplier post_norm(part(norm(input)) + bias)). r is the residual stream or, with
// residual_is_normed, the output of the norm.
struct ResidualBranch {
  std::string norm_name;       // within the layer
  std::unique_ptr<Norm> norm;  // null: none
  std::string name;            // of the part within the layer
  std::unique_ptr<LayerPart> part;
  std::string post_norm_name = {};
  std::unique_ptr<Norm> post_norm = nullptr;  // null: none
  float multiplier = 1;
  BranchInput input = BranchInput::kStream;
  bool residual_is_normed = false;
  bool drops_normed = false;  // the norm's output, between the passes (--recompute-modules)
  float dropout = 0;
  uint64_t dropout_site = 0;
};

// One layer: its branches add to the residual stream, one after the other. A layer of a
// GPT has self-attention and an MLP, one of a T5's decoder has cross-attention between them:
//
//   x1 = x  + dropout(self_attention(norm(x)) + bias)
//   x2 = x1 + dropout(cross_attention(norm(x1)) + bias)
//   y  = x2 + dropout(mlp(norm(x2)) + bias)
//
// A branch with BranchInput::kLayerInput runs in parallel to those before it (Wang and Komatsuzaki
// 2021, GPT-J). norm_placement puts the norm after each part instead, or one before and one after.
// x, y [s, b, h], [s/tp, b, h] with sequence parallelism; in params_dtype, or fp32 with
// fp32_residual_connection. The norm that follows a sum computes it: the next layer computes y.
class TransformerLayer final : public Module {
 public:
  // Parameters are registered in the order of the branches, each as norm, part, post_norm.
  TransformerLayer(std::vector<ResidualBranch> branches, const TensorParallel& tp);

  ResidualSum forward(const ResidualSum& x, const ForwardContext& context) const;

 private:
  TensorParallel tp_;
  std::vector<ResidualBranch> branches_;
};

}  // namespace megatron
