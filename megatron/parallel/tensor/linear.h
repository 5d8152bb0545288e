#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megatron/nn/fp8_config.h"
#include "megatron/nn/module.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/tensor/lora.h"
#include "megatron/parallel/tensor/pieces.h"

// Linear layers whose weight is spread over the tensor-parallel group
// (Shoeybi et al. 2019, arXiv:1909.08053, sec. 3). With sequence parallelism s stands for s/tp
// outside the pair of a column- and a row-parallel layer. In a group of one both are plain linear
// layers.
//
// The collectives of each pass, and the products that run beside them with
// TensorParallel::overlaps_products (P) or overlaps_gradients (G). The rank waits for the others.
//
//   layer    pass      without                     with sequence parallelism   beside
//   column   forward                               all-gather of x             P: product
//   row      forward   all-reduce of y             reduce-scatter of y         P: product
//   row      backward                              all-gather of dy            P: product of dx [1]
//   column   backward                              all-gather of x             G: product of dx [1]
//   column   backward  G: all-reduce of dx         reduce-scatter of dx        G: that of dweight
//
// [1] with P also the product of dweight for the rank's own rows.
//
// With LinearOptions::fp8 the products of a layer are those of fp8_linear.h. Inference may keep
// weights in 8 bits (rounded_linear.h).
namespace megatron {

class Fp8Layer;
enum class InferenceWeights;
struct RoundedWeight;

struct LinearOptions {
  bool has_bias = true;
  Init init;
  ParameterRole role = ParameterRole::kMatrix;  // of the weight
  bool has_vocabulary_rows = false;             // the output features are logits, one a token id
  // Parts of a column-parallel layer's output features: 2 for a gate stacked on what it multiplies.
  int64_t stacked_parts = 1;
  std::vector<int64_t> row_parts = {};  // see ParameterInfo, of a column-parallel layer
  Fp8Config fp8 = {};                   // of the products, not of those of an adapter
  LoraOptions lora = {};                // an adapter, whose output is added
};

// y = x weight^T + bias, each rank some columns of y.
//
//   x       [s, b, in]       the same on every rank; with sequence parallelism its [s/tp, b, in]
//   weight  [out/tp, in]     this rank's rows
//   bias    [out/tp]
//   y       [s, b, out/tp]
//
// Saves x as given. The backward pass gathers x again beside the product that makes dx, and runs
// the collective on dx beside the product that makes the gradient of weight
// (TensorParallel::overlaps_gradients).
class ColumnParallelLinear final : public Module {
 public:
  // Throws ConfigError unless out is a multiple of tp * stacked_parts.
  ColumnParallelLinear(int64_t in, int64_t out, const TensorParallel& tp,
                       const LinearOptions& options, const Placement& placement);
  ~ColumnParallelLinear() override;

  // `adapter_dropout` is of the adapter's input; it has no effect without an adapter.
  Variable forward(const Variable& x, const DropoutKey& adapter_dropout = {}) const;
  // Without the bias, for callers that add it in a fused kernel.
  Variable forward_without_bias(const Variable& x, const DropoutKey& adapter_dropout = {}) const;
  // Undefined when there is none.
  const Variable& bias() const { return bias_; }
  const Variable& weight() const { return weight_; }
  bool has_adapter() const { return adapter_.has_value(); }
  // Null without one.
  const ColumnParallelLora* adapter() const { return adapter_ ? &*adapter_ : nullptr; }
  // Null without FP8.
  const Fp8Layer* fp8() const { return fp8_.get(); }

  // Quantizes the weight for inference without FP8, unless it makes logits. weight() then returns
  // the quantized values without scales.
  void round_weight(InferenceWeights form) const;
  bool has_rounded_weight() const;
  // The factors [out/tp] of the rows of a rounded weight; undefined without.
  const Tensor& weight_scales() const;

 private:
  Variable product(const Variable& x, const Variable& bias) const;

  TensorParallel tp_;
  ParameterRole role_;
  Variable weight_;
  Variable bias_;
  std::unique_ptr<RoundedWeight> rounded_;  // empty: the weight has the model's dtype
  std::unique_ptr<Fp8Layer> fp8_;
  std::optional<ColumnParallelLora> adapter_;
};

// y = sum over ranks of x weight^T, + bias, each rank some columns of x.
//
//   x       [s, b, in/tp]    this rank's columns
//   weight  [out, in/tp]     this rank's columns
//   bias    [out]            the same on every rank
//   y       [s, b, out]      the same on every rank; with sequence parallelism [s/tp, b, out]
class RowParallelLinear final : public Module {
 public:
  // Throws ConfigError unless in is a multiple of tp.
  RowParallelLinear(int64_t in, int64_t out, const TensorParallel& tp, const LinearOptions& options,
                    const Placement& placement);
  ~RowParallelLinear() override;

  // With `may_split_k` y may be split-K partial sums [p, s, b, out] (linear_split_k()).
  Variable forward_without_bias(const Variable& x, const DropoutKey& adapter_dropout = {},
                                bool may_split_k = false) const;
  const Variable& bias() const { return bias_; }
  const Variable& weight() const { return weight_; }
  bool has_adapter() const { return adapter_.has_value(); }
  // Null without FP8.
  const Fp8Layer* fp8() const { return fp8_.get(); }

  // Quantizes the weight for inference without FP8, unless it makes logits. weight() then returns
  // the quantized values without scales.
  void round_weight(InferenceWeights form) const;
  bool has_rounded_weight() const;

 private:
  TensorParallel tp_;
  ParameterRole role_;
  Variable weight_;
  Variable bias_;
  std::unique_ptr<RoundedWeight> rounded_;  // empty: the weight has the model's dtype
  std::unique_ptr<Fp8Layer> fp8_;
  std::optional<RowParallelLora> adapter_;
};

// The computation of the two layers with the weight of another module (tied embeddings, adapters).
//   bias may be undefined
Variable column_parallel_linear(const Variable& x, const Variable& weight, const Variable& bias,
                                const TensorParallel& tp);
//   may_split_k  without gradients y may be [p, s, b, out] (linear_split_k())
Variable row_parallel_linear(const Variable& x, const Variable& weight, const TensorParallel& tp,
                             bool may_split_k = false);

// Parts of the two layers, for fused ops.

// Calls product() for all rows of x [s/tp, b, ..], which sequence parallelism gathers: once, or for
// each piece as it arrives.
void for_whole_rows(const Tensor& x, const TensorParallel& tp, const UseRows& product);
// The shape of the gathered x.
Shape whole_shape(const Tensor& x, const TensorParallel& tp);

// The gradients of x, weight and bias of a column-parallel layer; dy [s, b, out/tp].
Grads column_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                                const Wants& wants, const TensorParallel& tp);

// x [s, b, in/tp] -> x weight^T, summed over ranks; in parts if they may be given and are faster.
Tensor row_parallel_forward(const Tensor& x, const Variable& weight, const TensorParallel& tp,
                            bool may_split_k = false);
// Calls input_gradient() with all rows of dy, gathered, and returns the gradient of the weight:
// undefined if it is not wanted, or was added to a main gradient.
//   dy like the output of row_parallel_forward   x [s, b, in/tp]
Tensor row_parallel_gradients(const Tensor& dy, const Tensor& x, const LinearSaved& saved,
                              bool wants_weight, const TensorParallel& tp,
                              const UseRows& input_gradient);

}  // namespace megatron
