#include "megatron/kernels/bias_activation.h"

#include <type_traits>

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "bias_activation";

struct Matrix {
  int64_t rows;
  int64_t f;  // width of y
};

// The packs of a row of x, or of dx, that belong to a pack of y: one of each half with a gate.
template <Gate kGate>
constexpr int kHalves = kGate == Gate::kNone ? 1 : 2;
template <Gate kGate>
using Halves = Floats[kHalves<kGate>];

// Indices of the half that passes through the activation and of the linear half.
template <Gate kGate>
constexpr int kActivated = kGate == Gate::kSecondHalf ? 1 : 0;
template <Gate kGate>
constexpr int kLinear = 1 - kActivated<kGate>;

template <class Function, Gate kGate>
__device__ __forceinline__ Floats value(const Halves<kGate>& x) {
  Floats y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    y.values[i] = Function::value(x[kActivated<kGate>].values[i]);
    if constexpr (kGate != Gate::kNone) {
      y.values[i] *= linear_half<Function>(x[kLinear<kGate>].values[i]);
    }
  }
  return y;
}

template <class Function, Gate kGate>
__device__ __forceinline__ void differentiate(Halves<kGate>& dx, const Floats& dy,
                                              const Halves<kGate>& x) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float activated = x[kActivated<kGate>].values[i];
    float d = dy.values[i];
    if constexpr (kGate != Gate::kNone) {
      const float linear = x[kLinear<kGate>].values[i];
      dx[kLinear<kGate>].values[i] =
          linear_half_gradient<Function>(linear, d * Function::value(activated));
      d *= linear_half<Function>(linear);
    }
    dx[kActivated<kGate>].values[i] = d * Function::derivative(activated);
  }
}

__device__ __forceinline__ void add(Floats& sum, const Floats& x) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum.values[i] += x.values[i];
}

// The kernel for derivatives and their sums, of tensors of one dtype with 16-byte accesses. A block
// has kActivationRows rows of y and one pack of columns for each lane of a warp; a warp takes
// every kWarps-th row, several at once.
constexpr int kWarps = kThreads / kWarp;
constexpr int kColumnsOfBlock = kWarp * kVector;
constexpr int64_t kMaxRowBlocks = UINT16_MAX;
// First column and rows [row, end) of a thread.
struct ThreadTile {
  int64_t column, row, end;

  __device__ explicit ThreadTile(const Matrix& size)
      : column((static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp) * kVector),
        row(static_cast<int64_t>(row_block()) * kActivationRows + threadIdx.x / kWarp),
        end(min(size.rows, static_cast<int64_t>(row_block() + 1) * kActivationRows)) {}

  static __device__ unsigned row_block() { return gridDim.y - 1 - blockIdx.y; }
};

template <Gate kGate>
__device__ __forceinline__ void read_bias(Halves<kGate>& values, const Source& bias,
                                          const Matrix& size, int64_t column) {
  if (bias.is_null()) return;
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    values[h] = bias.read(h * size.f + column, kVector);
  }
}

template <class T, Gate kGate>
__device__ __forceinline__ void load_halves(RawPack<T> (&raw)[kHalves<kGate>], const T* x,
                                            const Matrix& size, int64_t row, int64_t column) {
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    raw[h] = load_pack(x + (row * kHalves<kGate> + h) * size.f + column);
  }
}

template <class T, Gate kGate>
__device__ __forceinline__ void unpack_biased(Halves<kGate>& x,
                                              const RawPack<T> (&raw)[kHalves<kGate>],
                                              const Halves<kGate>& bias, bool has_bias) {
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    x[h] = unpacked(raw[h]);
    if (has_bias) add(x[h], bias[h]);
  }
}

// sums [row blocks, width of dx]: the sums of dx, as stored, over the rows of each block.
template <class T, class Function, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    backward_sums_kernel(T* dx, float* sums, const T* dy, const T* x, Source bias, Matrix size) {
  constexpr int kInFlight = 2 / kHalves<kGate>;
  __shared__ float warp_sums[kWarps][kHalves<kGate> * kColumnsOfBlock];
  const ThreadTile at(size);
  Halves<kGate> total{};
  if (at.column < size.f) {
    Halves<kGate> b{};
    read_bias<kGate>(b, bias, size, at.column);
    for (int64_t first = at.row; first < at.end; first += kWarps * kInFlight) {
      RawPack<T> raw[kInFlight][kHalves<kGate>];
      RawPack<T> raw_dy[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t row = first + j * kWarps;
        if (row >= at.end) continue;
        load_halves<T, kGate>(raw[j], x, size, row, at.column);
        raw_dy[j] = load_pack(dy + row * size.f + at.column);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t row = first + j * kWarps;
        if (row >= at.end) continue;
        Halves<kGate> in, out;
        unpack_biased<T, kGate>(in, raw[j], b, !bias.is_null());
        differentiate<Function, kGate>(out, unpacked(raw_dy[j]), in);
#pragma unroll
        for (int h = 0; h < kHalves<kGate>; ++h) {
          const RawPack<T> stored = packed<T>(out[h]);
          store_pack(dx + (row * kHalves<kGate> + h) * size.f + at.column, stored);
          add(total[h], unpacked(stored));
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      warp_sums[threadIdx.x / kWarp][(h * kWarp + threadIdx.x % kWarp) * kVector + i] =
          total[h].values[i];
    }
  }
  __syncthreads();
  static_assert(kColumnsOfBlock == kThreads);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnsOfBlock + threadIdx.x;
  if (column >= size.f) return;
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    float sum = 0;
    for (int i = 0; i < kWarps; ++i) sum += warp_sums[i][h * kColumnsOfBlock + threadIdx.x];
    sums[(static_cast<int64_t>(ThreadTile::row_block()) * kHalves<kGate> + h) * size.f + column] =
        sum;
  }
}

// A Source, or a Sink, of whole packs whose dtype is a template argument.
template <class T>
struct Packs {
  T* data;

  using Value = std::remove_const_t<T>;
  __device__ RawPack<Value> fetch(int64_t at, int) const { return load_pack<Value>(data + at); }
  __device__ Floats floats(const RawPack<Value>& raw) const { return unpacked(raw); }
  __device__ void write(int64_t at, int, const Floats& pack) const {
    store_pack(data + at, packed<Value>(pack));
  }
};

// The kernels without sums: one thread for each pack of y. In is a Source or Packs, Out a Sink or
// Packs.
template <Gate kGate, class In, class Place>
__device__ __forceinline__ void read_halves(Halves<kGate>& in, const In& x, const Source& bias,
                                            const Matrix& size, const Place& here) {
  decltype(x.fetch(0, 0)) raw[kHalves<kGate>];
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    raw[h] = x.fetch((here.row * kHalves<kGate> + h) * size.f + here.column, here.count);
  }
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    in[h] = x.floats(raw[h]);
    if (!bias.is_null()) add(in[h], bias.read(h * size.f + here.column, here.count));
  }
}

template <class Function, Gate kGate, class Out, class In>
__global__ void __launch_bounds__(kThreads) forward_kernel(Out y, In x, Source bias, Matrix size) {
  const RowPack here(size.rows, size.f);
  if (here.count <= 0) return;
  Halves<kGate> in;
  read_halves<kGate>(in, x, bias, size, here);
  y.write(here.row * size.f + here.column, here.count, value<Function, kGate>(in));
}

template <class Function, Gate kGate, class Out, class In>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Out dx, In dy, In x, Source bias, Matrix size) {
  const RowPack here(size.rows, size.f);
  if (here.count <= 0) return;
  const auto raw_dy = dy.fetch(here.row * size.f + here.column, here.count);
  Halves<kGate> in, out;
  read_halves<kGate>(in, x, bias, size, here);
  differentiate<Function, kGate>(out, dy.floats(raw_dy), in);
#pragma unroll
  for (int h = 0; h < kHalves<kGate>; ++h) {
    dx.write((here.row * kHalves<kGate> + h) * size.f + here.column, here.count, out[h]);
  }
}

// The rows of a mixture of experts: a warp has a row, its lanes the packs of it in turn.
struct WarpRow {
  int64_t row;
  int64_t column;
  int count;  // columns left, at most 8

  __device__ explicit WarpRow(const Matrix& size)
      : row(static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp),
        column(static_cast<int64_t>(threadIdx.x % kWarp) * kVector),
        count(left(size)) {}

  __device__ void next(const Matrix& size) {
    column += kWarp * kVector;
    count = left(size);
  }

 private:
  __device__ int left(const Matrix& size) const {
    return static_cast<int>(min(size.f - column, int64_t{kVector}));
  }
};

struct RowWeights {
  const float* weights;
  const int* slots;
};

// Multiplies by the weight. Not of a row without one, of which nothing is known: 0.
__device__ __forceinline__ Floats scaled(const Floats& x, float weight, bool has_slot) {
  Floats y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) y.values[i] = has_slot ? x.values[i] * weight : 0.0f;
  return y;
}

template <class Function, Gate kGate, class Out, class In>
__global__ void __launch_bounds__(kThreads)
    weighed_forward_kernel(Out y, In x, RowWeights of, Matrix size) {
  WarpRow here(size);
  if (here.row >= size.rows) return;
  const int slot = of.slots[here.row];
  const float weight = slot < 0 ? 0.0f : of.weights[slot];
  for (; here.count > 0; here.next(size)) {
    Halves<kGate> in;
    read_halves<kGate>(in, x, Source{}, size, here);
    y.write(here.row * size.f + here.column, here.count,
            scaled(value<Function, kGate>(in), weight, slot >= 0));
  }
}

// The FP8 rows and scales that a kernel writes; null: none.
struct Fp8Sink {
  uint2* numbers;
  float* scales;
  bool is_e5m2;

  // The scale of a row of this magnitude, on every lane of its warp.
  __device__ __forceinline__ float scale(int64_t row, float largest) const {
    largest = warp_max(largest);
    const float made = is_e5m2 ? fp8_row_scale<__NV_E5M2>(largest) : fp8_row_scale(largest);
    if (threadIdx.x % kWarp == 0) scales[row] = made;
    return made;
  }
  __device__ __forceinline__ void write(int64_t at, const Floats& pack, float scale) const {
    numbers[at / kVector] =
        is_e5m2 ? fp8_numbers<__NV_E5M2>(pack, scale) : fp8_numbers(pack, scale);
  }
};

template <class T, class Function, Gate kGate>
__global__ void __launch_bounds__(kThreads)
    weighed_fp8_kernel(Fp8Sink y8, Packs<const T> x, RowWeights of, Matrix size) {
  constexpr int kKept = 4;  // packs of a lane that stay in registers
  WarpRow here(size);
  if (here.row >= size.rows) return;
  const int slot = of.slots[here.row];
  const float weight = slot < 0 ? 0.0f : of.weights[slot];
  float most = 0;
  const auto value_at = [&](const WarpRow& at) {
    Halves<kGate> in;
    read_halves<kGate>(in, x, Source{}, size, at);
    const RawPack<T> y = packed<T>(scaled(value<Function, kGate>(in), weight, slot >= 0));
    most = larger(most, largest_of(unpacked(y)));
    return y;
  };
  RawPack<T> kept[kKept];
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    if (here.count > 0) kept[n] = value_at(here);
    here.next(size);
  }
  const WarpRow rest = here;
  for (; here.count > 0; here.next(size)) value_at(here);
  const float scale = y8.scale(here.row, most);
  here = WarpRow(size);
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    if (here.count > 0) y8.write(here.row * size.f + here.column, unpacked(kept[n]), scale);
    here.next(size);
  }
  for (here = rest; here.count > 0; here.next(size)) {  // from the cache
    y8.write(here.row * size.f + here.column, unpacked(value_at(here)), scale);
  }
}

template <class Function, Gate kGate, class Out, class In>
__global__ void __launch_bounds__(kThreads)
    weighed_backward_kernel(Out dx, Fp8Sink dx8, Out y, float* dweights, In dy, In x, RowWeights of,
                            Matrix size) {
  WarpRow here(size);
  if (here.row >= size.rows) return;
  const int slot = of.slots[here.row];
  const float weight = slot < 0 ? 0.0f : of.weights[slot];
  float sum = 0;
  Floats most = {};
  for (; here.count > 0; here.next(size)) {
    const auto raw_dy = dy.fetch(here.row * size.f + here.column, here.count);
    Halves<kGate> in, out;
    read_halves<kGate>(in, x, Source{}, size, here);
    const Floats values = value<Function, kGate>(in);
    const Floats d = dy.floats(raw_dy);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < here.count) sum += d.values[i] * values.values[i];
    }
    differentiate<Function, kGate>(out, scaled(d, weight, slot >= 0), in);
    y.write(here.row * size.f + here.column, here.count, scaled(values, weight, slot >= 0));
#pragma unroll
    for (int h = 0; h < kHalves<kGate>; ++h) {
      const Floats d_half = scaled(out[h], 1.0f, slot >= 0);
      dx.write((here.row * kHalves<kGate> + h) * size.f + here.column, here.count, d_half);
      if (dx8.numbers != nullptr) most.values[0] = larger(most.values[0], largest_of(d_half));
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0 && slot >= 0) dweights[slot] += sum;
  if constexpr (!std::is_same_v<Out, Sink>) {
    if (dx8.numbers == nullptr) return;
    using T = typename Out::Value;
    const float scale = dx8.scale(here.row, unpacked(packed<T>(most)).values[0]);
    for (here = WarpRow(size); here.count > 0; here.next(size)) {  // from the cache
#pragma unroll
      for (int h = 0; h < kHalves<kGate>; ++h) {
        const int64_t at = (here.row * kHalves<kGate> + h) * size.f + here.column;
        dx8.write(at, dx.floats(dx.fetch(at, here.count)), scale);
      }
    }
  }
}

Fp8Sink fp8_sink_of(const Fp8RowsView& rows, bool are_whole_packs) {
  if (rows.is_null()) return {};
  if (!are_whole_packs || rows.numbers.size(1) % 16 != 0 || !is_aligned(rows.numbers.data)) {
    throw ShapeError("weighed_activation: rows in FP8 of " + std::to_string(rows.numbers.size(1)) +
                     " elements must be multiples of 16 and start at multiples of 16 bytes");
  }
  return {static_cast<uint2*>(rows.numbers.data), rows.scales.as<float>(),
          rows.numbers.dtype == DType::kFloat8E5M2};
}

void expect_shapes(ConstView y, ConstView x, ConstView bias, Activation activation) {
  const int64_t width = y.size(1) * (is_gated(activation) ? 2 : 1);
  expect_shape(x.shape, {y.size(0), width}, "bias_activation: x");
  if (bias.data != nullptr) expect_shape(bias.shape, {width}, "bias_activation: bias");
}

// True if the tensors share one dtype and consist of whole packs. Rows have `f` or 2 `f` elements.
template <class... Tensors>
bool are_packs(int64_t f, ConstView first, const Tensors&... others) {
  return is_wide(first, f) && ((others.dtype == first.dtype && is_wide(others, f)) && ...);
}

dim3 sums_grid(const Matrix& size) {
  return dim3(static_cast<unsigned>(divided_up(size.f, kColumnsOfBlock)),
              static_cast<unsigned>(activation_row_blocks(size.rows)));
}

// Launches the backward pass; sums == nullptr computes dx alone.
void launch_backward(TensorView dx, float* sums, ConstView dy, ConstView x, ConstView bias,
                     Activation activation, cudaStream_t queue) {
  const Matrix size{dy.size(0), dy.size(1)};
  const Source b = source_of(bias, size.f, kWho);
  const auto [grid, block] = row_grid(size.rows, size.f, kWho);
  dispatch_activation(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
    if (!are_packs(size.f, dx, dy, x)) {
      backward_kernel<Function, kGate>
          <<<grid, block, 0, queue>>>(sink_of(dx, size.f, kWho), source_of(dy, size.f, kWho),
                                      source_of(x, size.f, kWho), b, size);
      return;
    }
    dispatch_floating(x.dtype, kWho, [&]<class T>() {
      if (sums == nullptr) {
        backward_kernel<Function, kGate><<<grid, block, 0, queue>>>(
            Packs<T>{dx.as<T>()}, Packs<const T>{dy.as<T>()}, Packs<const T>{x.as<T>()}, b, size);
      } else {
        backward_sums_kernel<T, Function, kGate><<<sums_grid(size), kThreads, 0, queue>>>(
            dx.as<T>(), sums, dy.as<T>(), x.as<T>(), b, size);
      }
    });
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void bias_activation_forward(TensorView y, ConstView x, ConstView bias, Activation activation,
                             Stream stream) {
  expect_shapes(y, x, bias, activation);
  if (y.numel() == 0) return;
  const Matrix size{y.size(0), y.size(1)};
  const Source b = source_of(bias, size.f, kWho);
  const auto [grid, block] = row_grid(size.rows, size.f, kWho);
  const auto queue = native(stream);
  dispatch_activation(activation, [&, grid = grid, block = block]<class Function, Gate kGate>() {
    if (!are_packs(size.f, y, x)) {
      forward_kernel<Function, kGate><<<grid, block, 0, queue>>>(
          sink_of(y, size.f, kWho), source_of(x, size.f, kWho), b, size);
      return;
    }
    dispatch_floating(x.dtype, kWho, [&]<class T>() {
      forward_kernel<Function, kGate>
          <<<grid, block, 0, queue>>>(Packs<T>{y.as<T>()}, Packs<const T>{x.as<T>()}, b, size);
    });
  });
  MG_CUDA(cudaGetLastError());
}

void bias_activation_backward(TensorView dx, TensorView dbias, ConstView dy, ConstView x,
                              ConstView bias, Activation activation, float beta,
                              TensorView workspace, Stream stream) {
  expect_shapes(dy, x, bias, activation);
  expect_shape(dx.shape, x.shape, "bias_activation: dx");
  const int64_t rows = dy.size(0);
  TensorView sums;
  if (!dbias.is_null() && dy.numel() > 0 && activation_row_blocks(rows) <= kMaxRowBlocks &&
      are_packs(dy.size(1), dx, dy, x)) {
    const int64_t bytes = bias_activation_backward_workspace_bytes(x.shape);
    if (workspace.bytes() < bytes) {
      throw ShapeError("bias_activation: the workspace has " + std::to_string(workspace.bytes()) +
                       " bytes, expected bias_activation_backward_workspace_bytes(), " +
                       std::to_string(bytes));
    }
    sums = {workspace.data, {activation_row_blocks(rows), x.size(1)}, DType::kFloat32};
  }
  if (dy.numel() > 0) {
    launch_backward(dx, static_cast<float*>(sums.data), dy, x, bias, activation, native(stream));
  }
  if (dbias.is_null()) return;
  sum_rows(dbias, sums.is_null() ? ConstView(dx) : ConstView(sums), beta, stream);
}

void weighed_activation_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                                Activation activation, Stream stream) {
  const Matrix size{y.size(0), y.size(1)};
  const RowWeights of{weights.as<float>(), slots.as<int32_t>()};
  const auto blocks = static_cast<unsigned>(divided_up(size.rows, kWarps));
  const auto queue = native(stream);
  dispatch_activation(activation, [&]<class Function, Gate kGate>() {
    if (!are_packs(size.f, y, x)) {
      weighed_forward_kernel<Function, kGate><<<blocks, kThreads, 0, queue>>>(
          sink_of(y, size.f, kWho), source_of(x, size.f, kWho), of, size);
      return;
    }
    dispatch_floating(x.dtype, kWho, [&]<class T>() {
      weighed_forward_kernel<Function, kGate><<<blocks, kThreads, 0, queue>>>(
          Packs<T>{y.as<T>()}, Packs<const T>{x.as<T>()}, of, size);
    });
  });
  MG_CUDA(cudaGetLastError());
}

void weighed_activation_fp8(Fp8RowsView y8, ConstView x, ConstView weights, ConstView slots,
                            Activation activation, Stream stream) {
  const Matrix size{y8.numbers.size(0), y8.numbers.size(1)};
  const RowWeights of{weights.as<float>(), slots.as<int32_t>()};
  const auto blocks = static_cast<unsigned>(divided_up(size.rows, kWarps));
  const Fp8Sink sink = fp8_sink_of(y8, is_wide(x, size.f));
  dispatch_activation(activation, [&]<class Function, Gate kGate>() {
    dispatch_floating(x.dtype, kWho, [&]<class T>() {
      weighed_fp8_kernel<T, Function, kGate>
          <<<blocks, kThreads, 0, native(stream)>>>(sink, Packs<const T>{x.as<T>()}, of, size);
    });
  });
  MG_CUDA(cudaGetLastError());
}

void weighed_activation_backward(TensorView dx, Fp8RowsView dx8, TensorView y, TensorView dweights,
                                 ConstView dy, ConstView x, ConstView weights, ConstView slots,
                                 Activation activation, Stream stream) {
  const Matrix size{y.size(0), y.size(1)};
  const Fp8Sink sink = fp8_sink_of(dx8, are_packs(size.f, dx, y, dy, x));
  const RowWeights of{weights.as<float>(), slots.as<int32_t>()};
  const auto blocks = static_cast<unsigned>(divided_up(size.rows, kWarps));
  float* const sums = dweights.as<float>();
  const auto queue = native(stream);
  dispatch_activation(activation, [&]<class Function, Gate kGate>() {
    if (!are_packs(size.f, dx, y, dy, x)) {
      weighed_backward_kernel<Function, kGate><<<blocks, kThreads, 0, queue>>>(
          sink_of(dx, size.f, kWho), sink, sink_of(y, size.f, kWho), sums,
          source_of(dy, size.f, kWho), source_of(x, size.f, kWho), of, size);
      return;
    }
    dispatch_floating(x.dtype, kWho, [&]<class T>() {
      weighed_backward_kernel<Function, kGate><<<blocks, kThreads, 0, queue>>>(
          Packs<T>{dx.as<T>()}, sink, Packs<T>{y.as<T>()}, sums, Packs<const T>{dy.as<T>()},
          Packs<const T>{x.as<T>()}, of, size);
    });
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
