#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/kernels/activation.h"

namespace megatron {

// A low-rank adapter of each expert, whose product is added to that of the expert's matrix:
// y = w x + scale b a x (Hu et al. 2021, arXiv:2106.09685). Undefined: none.
struct ExpertAdapter {
  Variable a;  // [E, rank, in]
  Variable b;  // [E, out, rank]
  float scale = 1;
};

// The matrices of experts in E4M3 (kernels/fp8_matrices.h). Undefined: none.
struct Fp8Stack {
  Tensor rows;     // [E, out, in]
  Tensor columns;  // [E, in, out]: the transposes
  Tensor scales;   // [E] fp32
};

// The matrices of E experts, and their biases, which may be undefined. With those in FP8 products
// with rows of tokens are in FP8, too (expert_mlp()).
struct ExpertMatrices {
  Variable fc1;       // [E, f or 2f, h]: 2f with a gated activation
  Variable fc1_bias;  // [E, f or 2f]
  Variable fc2;       // [E, h, f]
  Variable fc2_bias;  // [E, h]
  ExpertAdapter fc1_adapter;
  ExpertAdapter fc2_adapter;
  Fp8Stack fc1_fp8 = {};
  Fp8Stack fc2_fp8 = {};
};

struct ExpertMlpOptions {
  Activation activation = Activation::kGeluTanh;
  int64_t num_experts = 0;   // of all ranks
  int64_t first_expert = 0;  // the id of the first of `matrices`
  bool weighs_input = false;
  bool adds_fc2_bias = true;
  DType fp8_gradients = DType::kFloat8E5M2;  // or E4M3: of gradients in products in FP8
};

// The sum over a token's experts, of those that `matrices` has, with p the expert's weight:
//
//   y[t] = sum over e of fc2_e(p act(fc1_e(x[t]) + fc1_bias_e)) + p fc2_bias_e
//
// With weighs_input fc1 reads p x instead, and p is 1 behind it. Without adds_fc2_bias the last
// term is left out of y, but fc2_bias gets its gradient.
//
//   x        [T, h]  fp32 | fp16 | bf16
//   ids      [T, k]  int32: experts of the token, -1: none
//   weights  [T, k]  fp32
//   y        [T, h]  dtype of x
//
// Saves x and the outputs of fc1. An expert without tokens has gradients of zero.
//
// With matrices in FP8 a row of tokens, or of what fc2 reads, is rounded to E4M3 and a row of their
// gradients to fp8_gradients, each with a scale from its own amax (kernels/fp8_rows.h), so that no
// row depends on others, nor on the layout of ranks:
//
//   product             factors                             dtype
//   y_e = x_e w_e^T     x_e, w_e                            E4M3, E4M3
//   dx_e = dy_e w_e     dy_e, transposed w_e                fp8_gradients, E4M3
//   dw_e = dy_e^T x_e   dy_e, x_e before they are rounded   that of x
//
// (Transformer Engine gives the rows of an expert one scale.) Biases and adapters keep the dtype of
// x.
Variable expert_mlp(const Variable& x, const Tensor& ids, const Variable& weights,
                    const ExpertMatrices& matrices, const ExpertMlpOptions& options);

// The inputs of expert_mlp that have gradients, in the order of ExpertPass::backward().
std::vector<Variable> expert_inputs(const Variable& x, const Variable& weights,
                                    const ExpertMatrices& matrices);

// The same on tensors, in steps, for an op that moves tokens between ranks beside them. A copy
// shares what is saved.
class ExpertPass {
 public:
  // Orders the tokens by expert. The host waits for the counts where `matrices` has some of the
  // experts only, or biases.
  ExpertPass(const Tensor& ids, const ExpertMatrices& matrices, const ExpertMlpOptions& options);

  Tensor forward(const Tensor& x, const Tensor& weights);
  // The gradients of expert_inputs() but that of fc1, for which fc1_gradient() needs dwide. That
  // of x is complete first, so that it can travel in the meantime.
  Grads backward(const Tensor& dy, const Wants& wants, Tensor& dwide) const;
  Tensor fc1_gradient(const Tensor& dwide) const;

 private:
  struct Saved;
  std::shared_ptr<Saved> saved_;
};

// expert_mlp() without a gradient by kernels for few tokens, as in a decode step: the host waits
// for nothing. Undefined if there is no such kernel (kernels/expert_forward.h), or with adapters.
Tensor expert_mlp_of_few_tokens(const Tensor& x, const Tensor& ids, const Tensor& weights,
                                const ExpertMatrices& matrices, const ExpertMlpOptions& options);

// y[t] = weights[t] x[t].   x [T, h]   weights [T, 1] fp32
Variable weighed_rows(const Variable& x, const Variable& weights);

}  // namespace megatron
