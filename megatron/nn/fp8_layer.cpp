#include "megatron/nn/fp8_layer.h"

#include <cmath>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/fp8_blocks.h"
#include "megatron/kernels/fp8_squares.h"
#include "megatron/kernels/fp8_transpose.h"

namespace megatron {
namespace {

TensorView view_or_null(Tensor& x) { return x.defined() ? x.view() : TensorView{}; }

// `matrix`, if it is defined, with its inverses, which are allocated if they are not. Products may
// read padding of inverses, so that is 0.
kernels::Fp8Blocked blocked(Tensor& matrix, Tensor& inverses, kernels::Fp8Blocks blocks) {
  if (!matrix.defined()) return {};
  if (!inverses.defined()) {
    const Shape shape = kernels::fp8_scales_shape(blocks, matrix.shape());
    inverses = blocks == kernels::Fp8Blocks::kSquare
                   ? zeros(shape, DType::kFloat32, matrix.stream())
                   : Tensor(shape, DType::kFloat32, matrix.stream());
  }
  return {matrix.view(), inverses.view()};
}

// A range of elements as a matrix that kernels for FP8 take, with rows of up to 4096.
Tensor as_matrix(const Tensor& range) {
  int64_t cols = 16;
  while (cols < 4096 && range.numel() % (32 * cols) == 0) cols *= 2;
  if (range.numel() % cols != 0) cols = range.numel();  // on the CPU
  return range.reshape({range.numel() / cols, cols});
}

}  // namespace

DType fp8_dtype(const Fp8Config& config, Fp8Tensor which) {
  const bool is_wide = config.format == Fp8Format::kHybrid && which == Fp8Tensor::kGradient;
  return is_wide ? DType::kFloat8E5M2 : DType::kFloat8E4M3;
}

float fp8_largest(const Fp8Config& config, Fp8Tensor which) {
  const bool is_wide = fp8_dtype(config, which) == DType::kFloat8E5M2;
  return std::ldexp(is_wide ? Float8E5M2::largest() : Float8E4M3::largest(),
                    static_cast<int>(-config.margin));
}

Fp8Layer::Fp8Layer(const Fp8Config& config, const Variable& weight, Stream stream)
    : config_(config), weight_(weight), stream_(stream) {
  if (config.recipe != Fp8Recipe::kDelayed) return;
  scales_ = add_buffer("scales", {kernels::kFp8Tensors}, DType::kFloat32, Init::ones(), stream);
  history_ = add_buffer("amax_history", {config.amax_history_len, kernels::kFp8Tensors},
                        DType::kFloat32, Init::zeros(), stream);
  if (only_describes()) return;
  // The state of a run that starts with weights of another one, which had no FP8.
  kernels::fill(scales_.view(), 1, stream);
  kernels::fill(history_.view(), 0, stream);
}

Fp8Matrix Fp8Layer::quantized(Fp8Tensor which, const kernels::Fp8Source& x,
                              const Fp8Parts& parts) const {
  const DType dtype = fp8_dtype(config_, which);
  Fp8Matrix y{.shape = {x.rows(), x.cols()}};
  if (parts.rows) y.rows = Tensor({x.rows(), x.cols()}, dtype, stream_);
  if (parts.columns) y.columns = Tensor({x.cols(), x.rows()}, dtype, stream_);
  quantize(y, which, x, parts);
  return y;
}

Tensor Fp8Layer::scale_of(Fp8Tensor which, const kernels::Fp8Source& x,
                          const comm::Group* ranks) const {
  if (state_->has_delayed_scales) return scales_.slice(static_cast<int64_t>(which), 1);
  Tensor amax = zeros({1}, DType::kFloat32, stream_);
  kernels::fp8_quantize({.amax = amax.view()}, x, {}, stream_);
  if (ranks != nullptr) comm::all_reduce(amax.view(), comm::Reduce::kMax, *ranks, stream_);
  return scale_from(which, amax);
}

Tensor Fp8Layer::scale_from(Fp8Tensor which, const Tensor& amax) const {
  Tensor scale({1}, DType::kFloat32, stream_);
  kernels::fp8_scale(scale.view(), amax.view(), fp8_largest(config_, which), stream_);
  return scale;
}

Tensor Fp8Layer::kept_amax(Fp8Tensor which) const {
  if (!state_->amax.defined() || !grad_enabled()) return {};
  return state_->amax.slice(static_cast<int64_t>(which), 1);
}

void Fp8Layer::quantize(Fp8Matrix& y, Fp8Tensor which, const kernels::Fp8Source& x,
                        const Fp8Parts& parts) const {
  const TraceRange range("fp8_quantize", stream_);
  if (config_.recipe == Fp8Recipe::kBlockwise) return quantize_blocks(y, which, x, parts);
  if (!y.row_inverses.defined()) {
    y.row_inverses = y.column_inverses = Tensor({1}, DType::kFloat32, stream_);
  }
  y.scale = scale_of(which, x, parts.ranks);
  kernels::Fp8Value value;
  if (parts.value != nullptr) {
    const Shape& shape = parts.value->shape;
    parts.value->columns =
        Tensor({shape[1], shape[0]}, fp8_dtype(config_, Fp8Tensor::kInput), stream_);
    value = {parts.value->columns.view(), std::as_const(parts.value->scale).view()};
  }
  Tensor sums = parts.sums;
  Tensor amax = kept_amax(which);
  kernels::fp8_quantize({.rows = view_or_null(y.rows),
                         .columns = view_or_null(y.columns),
                         .inverse = y.row_inverses.view(),
                         .amax = view_or_null(amax),
                         .sums = view_or_null(sums),
                         .value = value},
                        x, std::as_const(y.scale).view(), stream_);
}

void Fp8Layer::quantize_blocks(Fp8Matrix& y, Fp8Tensor which, const kernels::Fp8Source& x,
                               const Fp8Parts& parts) const {
  y.blocks = which == Fp8Tensor::kWeight ? kernels::Fp8Blocks::kSquare : kernels::Fp8Blocks::kLine;
  kernels::Fp8Blocked value;
  if (Fp8Matrix* const of = parts.value) {
    const DType dtype = fp8_dtype(config_, Fp8Tensor::kInput);
    of->columns = Tensor({of->shape[1], of->shape[0]}, dtype, stream_);
    value = blocked(of->columns, of->column_inverses, of->blocks);
  }
  Tensor sums = parts.sums;
  kernels::fp8_quantize_blocks({.blocks = y.blocks,
                                .rows = blocked(y.rows, y.row_inverses, y.blocks),
                                .columns = blocked(y.columns, y.column_inverses, y.blocks),
                                .value = value,
                                .sums = view_or_null(sums)},
                               x, stream_);
}

void Fp8Layer::quantize_weight() const {
  const Tensor& weight = weight_.data();
  Fp8Matrix& y = state_->weight;
  const MemoryScope scope(MemoryCategory::kParameters, "weights and scales in FP8");
  if (!y.rows.defined()) {
    const DType dtype = fp8_dtype(config_, Fp8Tensor::kWeight);
    y.shape = weight.shape();
    y.rows = Tensor(weight.shape(), dtype, stream_);
  }
  // Products by blocks need the inverses of columns, too.
  if (!y.columns.defined() &&
      (config_.keep_transpose_cache || config_.recipe == Fp8Recipe::kBlockwise)) {
    y.columns = Tensor({weight.size(1), weight.size(0)}, y.rows.dtype(), stream_);
  }
  quantize(y, Fp8Tensor::kWeight, {.x = weight.view()}, {});
  if (!config_.keep_transpose_cache) y.columns = Tensor();
}

Fp8Matrix Fp8Layer::weight_with_columns() const {
  Fp8Matrix y = weight();
  if (y.columns.defined()) return y;
  y.columns = Tensor({y.shape[1], y.shape[0]}, y.rows.dtype(), stream_);
  kernels::fp8_transpose(y.columns.view(), std::as_const(y.rows).view(), stream_);
  return y;
}

void Fp8Layer::gather_weight_in(Tensor rows, std::function<void()> arrive) const {
  state_->arrive = std::move(arrive);
  if (!state_->arrive) return;
  const MemoryScope scope(MemoryCategory::kParameters, "weights and scales in FP8");
  Fp8Matrix& y = state_->weight;
  y.shape = rows.shape();
  y.rows = std::move(rows);
  y.columns = Tensor({y.shape[1], y.shape[0]}, y.rows.dtype(), stream_);
  if (config_.recipe == Fp8Recipe::kBlockwise) {
    y.blocks = kernels::Fp8Blocks::kSquare;
    blocked(y.rows, y.row_inverses, y.blocks);
    blocked(y.columns, y.column_inverses, y.blocks);
  } else {
    y.row_inverses = y.column_inverses = Tensor({1}, DType::kFloat32, stream_);
  }
  if (!config_.keep_transpose_cache) y.columns = Tensor();
}

Shape Fp8Layer::shape_of_amax() const {
  return kernels::fp8_scales_shape(state_->weight.blocks, state_->weight.shape);
}

void Fp8Layer::measure_part(Tensor amax, const Tensor& part, int64_t begin) const {
  if (config_.recipe == Fp8Recipe::kBlockwise) {
    return kernels::fp8_measure_squares(amax.view(), {part.view(), begin, state_->weight.shape},
                                        stream_);
  }
  const Tensor from = as_matrix(part);
  kernels::fp8_quantize({.amax = amax.view()}, {.x = from.view()}, {}, stream_);
}

void Fp8Layer::scale_weight(const Tensor& amax) const {
  Fp8Matrix& y = state_->weight;
  if (config_.recipe == Fp8Recipe::kBlockwise) {
    return kernels::fp8_square_inverses(y.row_inverses.view(), y.column_inverses.view(),
                                        amax.view(), y.shape, stream_);
  }
  y.scale = needs_amax_of_weight() ? scale_from(Fp8Tensor::kWeight, amax)
                                   : scales_.slice(static_cast<int64_t>(Fp8Tensor::kWeight), 1);
  kernels::fp8_inverse(y.row_inverses.view(), std::as_const(y.scale).view(), stream_);
}

void Fp8Layer::quantize_part(const Tensor& part, int64_t begin) const {
  const Fp8Matrix& y = state_->weight;
  Tensor rows = y.rows.reshape({y.rows.numel()}).slice(begin, part.numel());
  if (config_.recipe == Fp8Recipe::kBlockwise) {
    return kernels::fp8_quantize_squares(rows.view(), {part.view(), begin, y.shape},
                                         y.row_inverses.view(), stream_);
  }
  Tensor amax = kept_amax(Fp8Tensor::kWeight);
  Tensor to = as_matrix(rows);
  const Tensor from = as_matrix(part);
  kernels::fp8_quantize({.rows = to.view(), .amax = view_or_null(amax)}, {.x = from.view()},
                        y.scale.view(), stream_);
}

void Fp8Layer::complete_weight() const {
  Fp8Matrix& y = state_->weight;
  if (!y.columns.defined()) return;
  kernels::fp8_transpose(y.columns.view(), std::as_const(y.rows).view(), stream_);
}

}  // namespace megatron
