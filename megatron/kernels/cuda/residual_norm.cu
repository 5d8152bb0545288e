#include "megatron/kernels/residual_norm.h"

#include <algorithm>

#include "megatron/kernels/cuda/norm_rows.cuh"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "residual_norm";
constexpr int64_t kMaxColumns = 8192;
// Threads of a block of the backward pass: all its blocks fit on the GPU at once.
constexpr unsigned kBlockThreads = 256;

// A branch stored as one tensor of D.
template <class D>
struct WholeBranch {
  const D* data;

  static constexpr unsigned kMostThreads = 1024;  // of a block, for the registers of Raw
  using Raw = RawPack<D>;
  __device__ Raw fetch(int64_t at) const { return load_pack(data + at); }
  __device__ Floats floats(const Raw& raw) const { return unpacked(raw); }
};

// A branch in split-K form: the sum of partial products that are `distance` elements apart.
struct SplitKBranch {
  const float* data;
  int64_t distance;
  int parts;

  static constexpr unsigned kMostThreads = 512;
  struct Raw {
    RawPack<float> parts[kMaxKSplits];
  };
  __device__ Raw fetch(int64_t at) const {
    Raw raw{};
#pragma unroll
    for (int i = 0; i < kMaxKSplits; ++i) {
      if (i < parts) raw.parts[i] = load_pack(data + i * distance + at);
    }
    return raw;
  }
  __device__ Floats floats(const Raw& raw) const {
    Floats sum = unpacked(raw.parts[0]);
#pragma unroll
    for (int i = 1; i < kMaxKSplits; ++i) {
      if (i >= parts) continue;
      const Floats part = unpacked(raw.parts[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.values[j] = __fadd_rn(sum.values[j], part.values[j]);
    }
    return sum;
  }
};

// Packs of x = residual + dropout(branch + bias), stored before their norm. The rounded products
// and sums prevent contraction by the compiler, for the CPU's bits.
template <class T, class Branch>
struct ResidualRows {
  T* x;
  const T* residual;
  Branch branch;
  Source bias;
  DropoutMask mask;
  int64_t cols;

  static constexpr unsigned kMostThreads = Branch::kMostThreads;
  struct Raw {
    RawPack<T> residual;
    typename Branch::Raw branch;
  };
  using Parameters = Words;
  using RowState = MaskRow;
  __device__ RowState row_state(int64_t row) const { return mask_row(mask, row); }
  __device__ void prefetch(int column) const { bias.prefetch(column); }
  __device__ Parameters parameters(int column) const {
    return bias.is_null() ? Words{} : bias.fetch(column, kVector);
  }
  __device__ Raw fetch(int64_t row, int column) const {
    const int64_t at = row * cols + column;
    return {load_pack(residual + at), branch.fetch(at)};
  }
  __device__ RawPack<T> finish(int64_t row, int column, const Raw& raw,
                               const Parameters& parameters, const RowState& row_state) const {
    Floats sum = branch.floats(raw.branch);
    if (!bias.is_null()) {
      const Floats b = bias.floats(parameters);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.values[i] = __fadd_rn(sum.values[i], b.values[i]);
    }
    apply(mask, row_state, column, sum);
    const Floats from = unpacked(raw.residual);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.values[i] = __fadd_rn(from.values[i], sum.values[i]);
    const RawPack<T> rounded_sum = packed<T>(sum);
    store_pack(x + row * cols + column, rounded_sum);
    return rounded_sum;
  }
};

// Calls f.operator()<T, D>() for a stream of T and branches of D, where D is T or T is fp32;
// returns false for other pairs.
template <class F>
bool dispatch_pair(DType stream, DType branch, const F& f) {
  if (stream == DType::kBFloat16 && branch == stream) {
    f.template operator()<BFloat16, BFloat16>();
  } else if (stream == DType::kFloat16 && branch == stream) {
    f.template operator()<Float16, Float16>();
  } else if (stream == DType::kFloat32 && branch == stream) {
    f.template operator()<float, float>();
  } else if (stream == DType::kFloat32 && branch == DType::kBFloat16) {
    f.template operator()<float, BFloat16>();
  } else if (stream == DType::kFloat32 && branch == DType::kFloat16) {
    f.template operator()<float, Float16>();
  } else {
    return false;
  }
  return true;
}

// True if every row allows accesses in packs of 16 bytes; true for null views.
template <class... Views>
bool are_wide(int64_t cols, const Views&... views) {
  return (is_wide(views, cols) && ...);
}

}  // namespace

bool residual_norm_forward(TensorView x, TensorView y, TensorView mean, TensorView rstd,
                           ConstView branch, ConstView bias, ConstView residual,
                           const NormParameters& norm, DropoutKey key, Stream stream) {
  const int64_t cols = x.size(2);
  if (x.numel() == 0 || cols > kMaxColumns ||
      !are_wide(cols, ConstView(x), ConstView(y), branch, bias, residual, norm.weight, norm.bias)) {
    return false;
  }
  const Forward forward{.y = sink_of(y, cols, kWho),
                        .mean = norm.is_rms_norm() ? nullptr : mean.as<float>(),
                        .rstd = rstd.as<float>(),
                        .x = {},
                        .weight = source_of(norm.weight, cols, kWho),
                        .bias = source_of(norm.bias, cols, kWho),
                        .rows = x.size(0) * x.size(1),
                        .cols = cols,
                        .weight_offset = norm.weight_offset,
                        .epsilon = norm.epsilon};
  const auto rows_of = [&]<class T, class Branch>(const Branch& of) {
    return ResidualRows<T, Branch>{.x = x.as<T>(),
                                   .residual = residual.as<T>(),
                                   .branch = of,
                                   .bias = source_of(bias, cols, kWho),
                                   .mask = dropout_mask_of(key, x.size(1)),
                                   .cols = cols};
  };
  if (branch.shape.rank() == 3) {
    return dispatch_pair(x.dtype, branch.dtype, [&]<class T, class D>() {
      const WholeBranch<D> whole{branch.as<D>()};
      launch_rows<T>(forward, rows_of.template operator()<T>(whole), stream, kWho);
    });
  }
  const SplitKBranch split_k{branch.as<float>(), x.numel(), static_cast<int>(branch.size(0))};
  dispatch_floating(x.dtype, kWho, [&]<class T>() {
    launch_few_rows<T>(forward, rows_of.template operator()<T>(split_k), stream, kWho);
  });
  return true;
}

bool residual_norm_adds_parts(const Shape& x, int64_t parts) {
  return parts <= kMaxKSplits && x[0] * x[1] <= kMaxOverlappedRows && x[2] % kVector == 0 &&
         x[2] <= int64_t{SplitKBranch::kMostThreads} * kVector;
}

bool residual_norm_backward(const ResidualNormGradients& out, ConstView dx_past, ConstView dy,
                            ConstView x, ConstView mean, ConstView rstd, const NormParameters& norm,
                            DropoutKey key, TensorView workspace, Stream stream) {
  const int64_t cols = x.size(2);
  if (x.numel() == 0 || cols > kMaxColumns ||
      !are_wide(cols, ConstView(out.dx), ConstView(out.dbranch), dx_past, dy, x, norm.weight)) {
    return false;
  }
  const bool has_sums = !out.dbias.is_null() || !out.dweight.is_null() || !out.dnorm_bias.is_null();
  if (has_sums && workspace.bytes() < residual_norm_backward_workspace_bytes(x.shape)) {
    throw ShapeError(std::string(kWho) + ": the workspace has " +
                     std::to_string(workspace.bytes()) +
                     " bytes, expected residual_norm_backward_workspace_bytes(), " +
                     std::to_string(residual_norm_backward_workspace_bytes(x.shape)));
  }
  const int64_t packs = cols / kVector;
  const bool is_one_pack = packs <= kRowsThreads;
  const unsigned threads = whole_warps(is_one_pack ? packs : divided_up(packs, 2));
  const dim3 block(threads, std::max(1u, kBlockThreads / threads));
  const int64_t rows = x.size(0) * x.size(1);
  const Backward backward{.dx = sink_of(out.dx, cols, kWho),
                          .partials = has_sums ? static_cast<float*>(workspace.data) : nullptr,
                          .dy = source_of(dy, cols, kWho),
                          .x = source_of(x, cols, kWho),
                          .mean = norm.is_rms_norm() ? nullptr : mean.as<float>(),
                          .rstd = rstd.as<float>(),
                          .weight = source_of(norm.weight, cols, kWho),
                          .rows = rows,
                          .cols = cols,
                          .num_partials = std::min(kMaxPartials, divided_up(rows, block.y)),
                          .weight_offset = norm.weight_offset,
                          .has_dbias = !out.dnorm_bias.is_null()};
  const ResidualGradient past{.dx_past = source_of(dx_past, cols, kWho),
                              .dbranch = sink_of(out.dbranch, cols, kWho),
                              .mask = dropout_mask_of(key, x.size(1)),
                              .has_dbias = !out.dbias.is_null()};
  const auto blocks = static_cast<unsigned>(backward.num_partials);
  const cudaStream_t queue = native(stream);
  const bool is_known = dispatch_pair(x.dtype, dy.dtype, [&]<class T, class D>() {
    if (is_one_pack) {
      backward_kernel<T, D, 1><<<blocks, block, 0, queue>>>(backward, past);
    } else {
      backward_kernel<T, D, 2><<<blocks, block, 0, queue>>>(backward, past);
    }
  });
  if (!is_known) return false;
  MG_CUDA(cudaGetLastError());
  if (!has_sums) return true;
  const ParameterSums sums{{{sink_of(out.dweight, cols, kWho), out.norm_beta},
                            {sink_of(out.dnorm_bias, cols, kWho), out.norm_beta},
                            {sink_of(out.dbias, cols, kWho), out.bias_beta}}};
  parameters_kernel<<<dim3(grid_of(cols, kWarp, kWho), 3), dim3(kWarp, kWarp), 0, queue>>>(
      sums, backward.partials, backward.num_partials, cols);
  MG_CUDA(cudaGetLastError());
  return true;
}

}  // namespace megatron::kernels::cuda
