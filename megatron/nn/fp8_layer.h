#pragma once

#include <functional>
#include <memory>

#include "megatron/comm/group.h"
#include "megatron/kernels/fp8.h"
#include "megatron/kernels/fp8_matmul.h"
#include "megatron/kernels/fp8_scales.h"
#include "megatron/nn/fp8_config.h"
#include "megatron/nn/module.h"

namespace megatron {

// A matrix in FP8 for matrix products, which sum over the last axis. With one scale for the matrix
// both inverses are the same tensor.
struct Fp8Matrix {
  Shape shape = {};             // [r, c]
  Tensor rows = {};             // [r, c] FP8; undefined if no product needs it
  Tensor columns = {};          // [c, r] FP8: the transpose; undefined if no product needs it
  Tensor row_inverses = {};     // Fp8Factor::inverse
  Tensor column_inverses = {};  // the same of columns
  Tensor scale = {};            // [1] fp32: 1 / inverse; undefined with blocks
  kernels::Fp8Blocks blocks = kernels::Fp8Blocks::kWhole;

  kernels::Fp8Factor by_rows() const { return {rows.view(), row_inverses.view(), blocks}; }
  kernels::Fp8Factor by_columns() const { return {columns.view(), column_inverses.view(), blocks}; }
  // Frees the memory that by_rows() reads.
  void drop_rows() {
    rows = Tensor();
    row_inverses = Tensor();
  }
};

// The operands of a linear layer's products. The values are indices in its state.
enum class Fp8Tensor { kInput, kWeight, kGradient };

// The parts that quantized() makes.
struct Fp8Parts {
  bool rows = true;
  bool columns = true;
  Tensor sums = {};  // Fp8Target::sums; undefined: not wanted
  // Ranks among which the rows of x are divided: amax is the largest over them. Null: x is whole.
  const comm::Group* ranks = nullptr;
  // For a derivative: also makes the columns of the activation's value, which was quantised before.
  Fp8Matrix* value = nullptr;
};

// The FP8 state of a linear layer: its scales, and its weight in FP8.
//
//   scales        [3]          buffer: of each Fp8Tensor
//   amax_history  [length, 3]  buffer: the amax of earlier iterations (kernels/fp8_scales.h)
//
// With tensorwise scaling there are no buffers, and a tensor is read twice: for its amax and for
// its elements. Delayed scaling does the same until there is a history, in the first iteration.
// With scales of blocks there are no buffers, either, and a tensor is read once.
class Fp8Layer final : public Module {
 public:
  // For a layer with this weight, [out, in].
  Fp8Layer(const Fp8Config& config, const Variable& weight, Stream stream);

  // In grad mode it updates the amax of this iteration.
  Fp8Matrix quantized(Fp8Tensor which, const kernels::Fp8Source& x, const Fp8Parts& parts) const;
  // As of the last quantize_weight(), at a fixed address. Has columns only with
  // Fp8Config::keep_transpose_cache.
  const Fp8Matrix& weight() const {
    if (state_->arrive) state_->arrive();
    return state_->weight;
  }
  // The weight with its columns, which it keeps or which exist as long as the result.
  Fp8Matrix weight_with_columns() const;
  // Call after each change of the weight.
  void quantize_weight() const;

  // For Fp8Gather, instead of quantize_weight(): from now on Fp8Gather assembles the FP8 weight
  // from parts in `rows` [out, in], and weight() calls `arrive` first. Null: no more calls.
  void gather_weight_in(Tensor rows, std::function<void()> arrive) const;
  bool gathers_weight() const { return state_->arrive != nullptr; }
  // 1. True if the weight's scale comes from its own amax, false if from the amax history.
  bool needs_amax_of_weight() const { return !state_->has_delayed_scales; }
  Shape shape_of_amax() const;
  // 2. If so, raises amax to that of a part of the weight, elements [begin, begin + n).
  void measure_part(Tensor amax, const Tensor& part, int64_t begin) const;
  // 3. Sets the scale, from the amax of all parts if it is needed.
  void scale_weight(const Tensor& amax) const;
  // 4. Rounds a part to its place in the rows. In grad mode it updates the amax of this iteration.
  void quantize_part(const Tensor& part, int64_t begin) const;
  // 5. After all parts are complete: makes the tensors that products need besides the rows.
  void complete_weight() const;

  // True if the weight's gradient is a product in FP8.
  bool has_fp8_wgrad() const { return config_.wgrad; }
  bool gathers_in_fp8() const { return config_.gathers_in_fp8(); }

  // The parameter that is kept in FP8.
  const Variable& parameter() const { return weight_; }

  // For Fp8Scaling.
  const Tensor& scales() const { return scales_; }
  const Tensor& amax_history() const { return history_; }
  // From now on the layer stores the amax of an iteration in `amax` [3].
  void keep_amax_in(Tensor amax) const { state_->amax = std::move(amax); }
  void use_delayed_scales() const { state_->has_delayed_scales = true; }

 private:
  struct State {
    Tensor amax;  // undefined: not kept
    Fp8Matrix weight;
    bool has_delayed_scales = false;
    std::function<void()> arrive;  // null: quantize_weight() makes the weight
  };

  Tensor scale_from(Fp8Tensor which, const Tensor& amax) const;
  // The element of the stored amax of this iteration; undefined if none is stored.
  Tensor kept_amax(Fp8Tensor which) const;
  // The scale of x: of earlier iterations, or its own.
  Tensor scale_of(Fp8Tensor which, const kernels::Fp8Source& x, const comm::Group* ranks) const;
  // Allocates the missing inverses of y, and makes the parts that y has.
  void quantize(Fp8Matrix& y, Fp8Tensor which, const kernels::Fp8Source& x,
                const Fp8Parts& parts) const;
  void quantize_blocks(Fp8Matrix& y, Fp8Tensor which, const kernels::Fp8Source& x,
                       const Fp8Parts& parts) const;

  const Fp8Config config_;
  const Variable weight_;
  const Stream stream_;
  Tensor scales_;
  Tensor history_;
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

// The type of a tensor, and the number that its amax is scaled to.
DType fp8_dtype(const Fp8Config& config, Fp8Tensor which);
float fp8_largest(const Fp8Config& config, Fp8Tensor which);

}  // namespace megatron
