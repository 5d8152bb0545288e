#include "megatron/optim/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/muon.h"
#include "megatron/kernels/optimizer.h"

namespace megatron {
namespace {

using kernels::Transpose;

// https://leloykun.github.io/ponder/muon-opt-coeffs: "quintic" of Megatron Core.
struct Quintic {
  float a, b, c;
};
constexpr std::array<Quintic, 5> kQuintics = {{{4.0848f, -6.8946f, 2.9270f},
                                               {3.9505f, -6.3029f, 2.6377f},
                                               {3.7418f, -5.5913f, 2.3037f},
                                               {2.8769f, -3.1427f, 1.2046f},
                                               {2.8366f, -3.0525f, 1.2012f}}};

// The rows of a part, group after group.
Tensor rows_of(const Tensor& matrix, const MuonMatrix& m, const MuonMatrix::Part& part) {
  if (m.parts.size() == 1) return matrix;
  Tensor rows({m.groups * part.rows, m.cols}, matrix.dtype(), matrix.stream());
  for (int64_t group = 0; group < m.groups; ++group) {
    Tensor to = rows.slice(group * part.rows, part.rows);
    copy_into(to, matrix.slice(group * m.group_rows + part.begin, part.rows));
  }
  return rows;
}

void put_rows(const Tensor& matrix, const MuonMatrix& m, const MuonMatrix::Part& part,
              const Tensor& rows) {
  for (int64_t group = 0; group < m.groups; ++group) {
    Tensor to = matrix.slice(group * m.group_rows + part.begin, part.rows);
    copy_into(to, rows.slice(group * part.rows, part.rows));
  }
}

Tensor normalized(const Tensor& x, const RangeTables& whole, DType dtype) {
  const Stream stream = x.stream();
  Tensor measured({1, 2}, DType::kFloat64, stream);
  Tensor scratch(kernels::measure_scratch_shape(x.numel(), 1), DType::kFloat64, stream);
  const Tensor flat = x.reshape({x.numel()});
  kernels::squares_and_zeros(measured.view(), flat.view(), {whole.ends.view(), whole.groups.view()},
                             scratch.view(), stream);
  Tensor y(x.shape(), dtype, stream);
  kernels::muon_normalize(y.view(), x.view(), measured.view(), stream);
  return y;
}

}  // namespace

Tensor newton_schulz(Tensor x, int64_t steps) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  const Stream stream = x.stream();
  const bool is_tall = rows > cols;
  const int64_t less = std::min(rows, cols);
  Tensor gram({less, less}, x.dtype(), stream);
  Tensor square({less, less}, x.dtype(), stream);
  Tensor next(x.shape(), x.dtype(), stream);
  const auto multiply = [&](Tensor& y, const Tensor& left, Transpose left_as, const Tensor& right,
                            Transpose right_as, float beta) {
    kernels::matmul(y.view(), left.view(), left_as, right.view(), right_as, {}, beta, stream);
  };
  for (int64_t step = 0; step < steps; ++step) {
    const Quintic& k = kQuintics[static_cast<size_t>(step) % kQuintics.size()];
    // x = a x + (b G + c G^2) x with G = x x^T; of a tall x from the other side.
    multiply(gram, x, is_tall ? Transpose::kYes : Transpose::kNo, x,
             is_tall ? Transpose::kNo : Transpose::kYes, 0.0f);
    multiply(square, gram, Transpose::kNo, gram, Transpose::kNo, 0.0f);
    scale_inplace(square, k.c);
    add_inplace(square, gram, k.b);
    copy_into(next, x);
    multiply(next, is_tall ? x : square, Transpose::kNo, is_tall ? square : x, Transpose::kNo, k.a);
    std::swap(x, next);
  }
  return x;
}

double muon_scale(MuonScaleMode mode, int64_t rows, int64_t cols) {
  const double ratio = static_cast<double>(rows) / static_cast<double>(cols);
  if (mode == MuonScaleMode::kSpectral) {
    return std::sqrt(static_cast<double>(std::max(rows, cols)));
  }
  return std::sqrt(mode == MuonScaleMode::kShapeScaling ? std::max(1.0, ratio) : ratio);
}

std::vector<MuonMatrix> muon_matrices(const FlatBuffer& buffer,
                                      const std::vector<OptimizedParameter>& parameters,
                                      bool splits_qkv, Stream stream) {
  std::vector<MuonMatrix> all;
  for (size_t i = 0; i < buffer.parameters.size(); ++i) {
    const OptimizedParameter& parameter = parameters[buffer.parameters[i]];
    const FlatPlace& place = buffer.layout.places[i];
    const Shape& shape = parameter.variable.shape();
    const int64_t cols = shape[-1];
    const int64_t rows = shape.numel() / cols;
    MuonMatrix& matrix = all.emplace_back();
    matrix.parameter = buffer.parameters[i];
    matrix.span = {place.begin, place.end};
    matrix.cols = cols;
    std::vector<int64_t> parts = {rows};
    if (shape.rank() == 3) parts.assign(static_cast<size_t>(shape[0]), shape[1]);  // of experts
    if (splits_qkv && !parameter.row_parts.empty()) parts = parameter.row_parts;
    matrix.group_rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    matrix.groups = rows / matrix.group_rows;
    invariant(rows % matrix.group_rows == 0, "a rank has whole groups of rows");
    int64_t begin = 0;
    for (const int64_t part : parts) {
      const FlatRanges whole = {{matrix.groups * part * matrix.cols}, {0}};
      matrix.parts.push_back({.begin = begin, .rows = part, .whole = range_tables(whole, stream)});
      begin += part;
    }
  }
  return all;
}

double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps) {
  const auto less = static_cast<double>(std::min(rows, cols));
  const auto more = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(steps) * (4 * less * less * more + 2 * less * less * less);
}

double MuonMatrix::flops(int64_t steps) const {
  double sum = 0;
  for (const Part& part : parts) sum += newton_schulz_flops(groups * part.rows, cols, steps);
  return sum;
}

void make_orthogonal(const MuonMatrix& matrix, const Tensor& direction,
                     const OptimizerConfig& config) {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const Tensor rows = direction.reshape({matrix.groups * matrix.group_rows, matrix.cols});
  const DType dtype =
      config.muon_fp32_matmul_prec == MuonPrecision::kHigh ? DType::kFloat32 : DType::kBFloat16;
  for (const MuonMatrix::Part& part : matrix.parts) {
    const Tensor x = normalized(rows_of(rows, matrix, part), part.whole, dtype);
    Tensor orthogonal = cast(newton_schulz(x, config.muon_num_ns_steps), DType::kFloat32);
    const double factor = muon_scale(config.muon_scale_mode, x.size(0), x.size(1));
    scale_inplace(orthogonal, static_cast<float>(factor * config.muon_extra_scale_factor));
    put_rows(rows, matrix, part, orthogonal);
  }
}

}  // namespace megatron
