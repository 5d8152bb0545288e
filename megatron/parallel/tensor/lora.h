#pragma once

#include "megatron/device/random.h"
#include "megatron/nn/module.h"
#include "megatron/parallel/parallel_context.h"

// Low-rank adapters of tensor-parallel linear layers (Hu et al. 2021, arXiv:2106.09685). They are
// linear layers themselves, divided like the layer that they adapt. The first value of B is zero,
// so that training begins with the unchanged model. `dropout` applies to the input of A; its rows
// are those of x, and its columns those of the whole input, for any division among ranks.
namespace megatron {

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapter
  double scale = 1;  // alpha / rank
};

// The name of an adapter in its layer, and of its parameters A and B in it.
inline constexpr const char* kAdapter = "adapter";
inline constexpr const char* kLoraA = "linear_in.weight";
inline constexpr const char* kLoraB = "linear_out.weight";

// y = scale * x A^T B^T, each rank some columns of y, beside a ColumnParallelLinear.
//
//   x  [s, b, in]       like that of the layer
//   A  [rank, in]       on every rank
//   B  [out/tp, rank]   this rank's rows; `parts` like LinearOptions::stacked_parts
//   y  [s, b, out/tp]
class ColumnParallelLora final : public Module {
 public:
  ColumnParallelLora(int64_t in, int64_t out, int64_t parts, const TensorParallel& tp,
                     const LoraOptions& options, const Placement& placement);

  Variable forward(const Variable& x, const DropoutKey& dropout) const;

  const Variable& a() const { return a_; }
  const Variable& b() const { return b_; }
  float scale() const { return scale_; }

 private:
  TensorParallel tp_;
  float scale_;
  Variable a_;
  Variable b_;
};

// y = scale * (sum over ranks of x A^T) B^T, each rank some columns of x, beside a
// RowParallelLinear.
//
//   x  [s, b, in/tp]
//   A  [rank, in/tp]   this rank's columns
//   B  [out, rank]     on every rank
//   y  [s, b, out]     like that of the layer
//
// With dropout in/tp is a multiple of 8.
class RowParallelLora final : public Module {
 public:
  RowParallelLora(int64_t in, int64_t out, const TensorParallel& tp, const LoraOptions& options,
                  const Placement& placement);

  Variable forward(const Variable& x, const DropoutKey& dropout) const;

 private:
  TensorParallel tp_;
  float scale_;
  Variable a_;
  Variable b_;
};

}  // namespace megatron
