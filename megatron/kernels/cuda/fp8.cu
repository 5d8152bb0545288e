#include "megatron/kernels/fp8.h"

#include <cuda_fp8.h>

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/pack.cuh"

// A block takes a square tile of v, and a thread four packs of eight elements, one below the other.
// So a thread has four neighbours of each column as one word of the transpose, which the block
// collects in shared memory and stores as whole lines.
namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_quantize";
constexpr int kTile = 128;                      // rows and columns
constexpr int kRowsOfThread = 4;                // a word of the transpose
constexpr int kPacks = kTile / kVector;         // in a row of the tile
constexpr int kGroups = kTile / kRowsOfThread;  // of rows
constexpr int kTileThreads = kPacks * kGroups;
constexpr int kTileWarps = kTileThreads / kWarp;
static_assert(kTile == kFp8SumRows);
static_assert(kWarp == 2 * kPacks, "a warp has two groups of rows");

// GELU for results of one decimal digit: the hardware's exponential, of six.
struct FastGelu {
  static __device__ float gate(float x) {
    const float u = 2.0f * 0.79788456f * x * fmaf(0.044715f * x, x, 1.0f);
    return __fdividef(1.0f, 1.0f + __expf(-u));
  }
  static __device__ float value(float x) { return x * gate(x); }
  static __device__ float derivative(float x) {
    const float s = gate(x);
    return fmaf(2.0f * x * s * (1.0f - s), fmaf(0.1070322243f * x, x, 0.79788456f), s);
  }
};
template <class Function>
struct Fast {
  using type = Function;
};
template <>
struct Fast<GeluTanh> {
  using type = FastGelu;
};

// The sources of v, for packs of eight columns: fetch() starts the loads, value() uses them.
template <class T>
struct Plain {
  const T* x;
  int64_t cols;

  using Raw = RawPack<T>;
  __device__ Raw fetch(int64_t row, int64_t col) const { return load_pack(x + row * cols + col); }
  __device__ Floats value(const Raw& raw, int64_t) const { return unpacked(raw); }
};

template <class T, class Function, Gate kGate>
struct Activated {
  static constexpr bool kHasGate = kGate != Gate::kNone;
  const T* x;
  int64_t cols;

  struct Raw {
    RawPack<T> first, second;  // second: only with a gate
  };
  __device__ Raw fetch(int64_t row, int64_t col) const {
    const T* const at = x + row * (kHasGate ? 2 : 1) * cols + col;
    Raw raw;
    raw.first = load_pack(at);
    if constexpr (kHasGate) raw.second = load_pack(at + cols);
    return raw;
  }
  __device__ Floats value(const Raw& raw, int64_t) const {
    Floats v = unpacked(raw.first);
    Floats other;
    if constexpr (kHasGate) other = unpacked(raw.second);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (!kHasGate) {
        v.values[i] = Function::value(v.values[i]);
      } else if constexpr (kGate == Gate::kFirstHalf) {
        v.values[i] = Function::value(v.values[i]) * other.values[i];
      } else {
        v.values[i] = v.values[i] * Function::value(other.values[i]);
      }
    }
    return v;
  }
};

template <class T, class Function, Gate kGate>
struct Derivative {
  static constexpr bool kHasGate = kGate != Gate::kNone;
  const T* x;
  const T* dy;
  int64_t cols;
  using Value = Activated<T, Function, kGate>;

  struct Raw {
    RawPack<T> dy, first, second;  // second: only with a gate
  };
  __device__ int64_t half() const { return kHasGate ? cols / 2 : cols; }
  __device__ Raw fetch(int64_t row, int64_t col) const {
    const int64_t at = col < half() ? col : col - half();
    const T* const from = x + row * cols + at;
    Raw raw;
    raw.dy = load_pack(dy + row * half() + at);
    raw.first = load_pack(from);
    if constexpr (kHasGate) raw.second = load_pack(from + half());
    return raw;
  }
  __device__ Floats value(const Raw& raw, int64_t col) const {
    Floats v = unpacked(raw.dy);
    const Floats first = unpacked(raw.first);
    if constexpr (!kHasGate) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) v.values[i] *= Function::derivative(first.values[i]);
    } else {
      const Floats second = unpacked(raw.second);
      const Floats& gate = kGate == Gate::kFirstHalf ? first : second;
      const Floats& linear = kGate == Gate::kFirstHalf ? second : first;
      const bool is_gate = (col < half()) == (kGate == Gate::kFirstHalf);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v.values[i] *= is_gate ? linear.values[i] * Function::derivative(gate.values[i])
                               : Function::value(gate.values[i]);
      }
    }
    return v;
  }
};

// Fp8Value.
struct ValueTile {
  uint8_t* columns;
  const float* scale;
  int64_t cols;
};

struct Tile {
  uint8_t* rows;
  uint8_t* columns;
  float* inverse;
  float* amax;
  float* sums;
  const float* scale;
  __nv_fp8_interpretation_t format;
  int64_t num_rows, cols;
  ValueTile value;
};

// The larger one; NaN if one is.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// Eight elements in FP8.
__device__ uint2 quantized(const Floats& v, float scale, __nv_fp8_interpretation_t format) {
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = make_float2(v.values[2 * i] * scale, v.values[2 * i + 1] * scale);
    halves[i] = format == __NV_E4M3 ? __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3)
                                    : __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E5M2);
  }
  return make_uint2(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16);
}

// Four words of four elements become the four words of the transpose.
__device__ uint4 transposed(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(ab_low, cd_low, 0x5410), __byte_perm(ab_low, cd_low, 0x7632),
                    __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632));
}

// The place of a word of the transposed tile in shared memory. Words of a column stay in pairs, and
// a warp, which stores one column of each of its packs, meets every bank once.
__device__ int place(int column, int group) {
  return column * kGroups + (group ^ 2 * (column / kVector));
}

__device__ void raise(float* amax, float value) {
  // Numbers that are not negative compare as their bits do, and NaN is above all of them.
  const int bits = __float_as_int(value);
  if (bits > *reinterpret_cast<volatile int*>(amax)) atomicMax(reinterpret_cast<int*>(amax), bits);
}

// The words of a transposed tile.
using Words = uint32_t[kTile * kGroups];

// A thread's rows of eight elements become four neighbours of eight columns.
__device__ void collect(Words& words, const uint2 (&stored)[kRowsOfThread], int pack, int group) {
  const uint4 low = transposed(stored[0].x, stored[1].x, stored[2].x, stored[3].x);
  const uint4 high = transposed(stored[0].y, stored[1].y, stored[2].y, stored[3].y);
  const uint32_t of_columns[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < kVector; ++j) words[place(pack * kVector + j, group)] = of_columns[j];
}

// Half a warp stores a column of the tile, 128 bytes.
__device__ void store_columns(uint8_t* columns, const Words& words, int64_t tile_row,
                              int64_t tile_col, int64_t num_rows, int64_t cols) {
  const int pair = threadIdx.x % kPacks;
  const int64_t row_of_pair = tile_row + 2 * kRowsOfThread * pair;
  if (row_of_pair >= num_rows) return;
  for (int column = threadIdx.x / kPacks; column < kTile; column += kTileThreads / kPacks) {
    if (tile_col + column >= cols) return;
    const uint2 two = *reinterpret_cast<const uint2*>(&words[place(column, 2 * pair)]);
    *reinterpret_cast<uint2*>(columns + (tile_col + column) * num_rows + row_of_pair) = two;
  }
}

// kHasValue: source is a Derivative, and t.value is made.
template <class Source, bool kHasValue>
__global__ void __launch_bounds__(kTileThreads, kHasValue ? 2 : 1)
    quantize_kernel(Tile t, Source source) {
  __shared__ Words words;
  __shared__ uint32_t value_words[kHasValue ? kTile * kGroups : 1];
  __shared__ float warp_sums[kTileWarps][kTile];
  __shared__ float warp_amax[kTileWarps];
  const int pack = threadIdx.x % kPacks;
  const int group = threadIdx.x / kPacks;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t tile_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t row = tile_row + group * kRowsOfThread;
  const int64_t col = tile_col + pack * kVector;
  const bool is_inside = row < t.num_rows && col < t.cols;
  if (t.inverse != nullptr && blockIdx.x + blockIdx.y + threadIdx.x == 0)
    *t.inverse = 1.0f / *t.scale;

  float most = 0;
  float sums[kVector] = {};
  if (is_inside) {
    typename Source::Raw raw[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) raw[i] = source.fetch(row + i, col);
    const float scale = t.scale == nullptr ? 1.0f : *t.scale;
    uint2 stored[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const Floats v = source.value(raw[i], col);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        most = larger_or_nan(fabsf(v.values[j]), most);
        sums[j] += v.values[j];
      }
      stored[i] = quantized(v, scale, t.format);
      if (t.rows != nullptr) {
        *reinterpret_cast<uint2*>(t.rows + (row + i) * t.cols + col) = stored[i];
      }
    }
    if (t.columns != nullptr) collect(words, stored, pack, group);
    if constexpr (kHasValue) {
      if (col < t.value.cols) {
        const typename Source::Value activated{source.x, t.value.cols};
        const float value_scale = *t.value.scale;
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
          // From the cache: registers that kept it would spill.
          const auto again = activated.fetch(row + i, col);
          stored[i] = quantized(activated.value(again, col), value_scale, __NV_E4M3);
        }
        collect(value_words, stored, pack, group);
      }
    }
  }
  if (t.amax != nullptr) {
    most = warp_max(most);
    if (lane == 0) warp_amax[warp] = most;
  }
  if (t.sums != nullptr) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sums[j] += __shfl_down_sync(kFullMask, sums[j], kPacks);  // the warp's other group
      if (lane < kPacks) warp_sums[warp][pack * kVector + j] = sums[j];
    }
  }
  __syncthreads();
  if (t.amax != nullptr && warp == 0) {
    most = warp_max(lane < kTileWarps ? warp_amax[lane] : 0.0f);
    if (lane == 0) raise(t.amax, most);
  }
  if (t.sums != nullptr && threadIdx.x < kTile && tile_col + threadIdx.x < t.cols) {
    float sum = 0;
    for (int i = 0; i < kTileWarps; ++i) sum += warp_sums[i][threadIdx.x];
    t.sums[blockIdx.y * t.cols + tile_col + threadIdx.x] = sum;
  }
  if (t.columns != nullptr) {
    store_columns(t.columns, words, tile_row, tile_col, t.num_rows, t.cols);
  }
  if constexpr (kHasValue) {
    store_columns(t.value.columns, value_words, tile_row, tile_col, t.num_rows, t.value.cols);
  }
}

template <bool kHasValue = false, class Source>
void launch(const Tile& tile, const Source& source, Stream stream) {
  const dim3 grid(static_cast<unsigned>(divided_up(tile.cols, kTile)),
                  static_cast<unsigned>(divided_up(tile.num_rows, kTile)));
  quantize_kernel<Source, kHasValue><<<grid, kTileThreads, 0, native(stream)>>>(tile, source);
  MG_CUDA(cudaGetLastError());
}

template <class T>
void launch_source(const Tile& tile, const Fp8Source& source, Stream stream) {
  const T* const x = source.x.as<T>();
  const T* const dy = source.is_derivative() ? source.dy.as<T>() : nullptr;
  if (!source.activation) return launch(tile, Plain<T>{x, tile.cols}, stream);
  dispatch_activation(*source.activation, [&]<class Accurate, Gate kGate>() {
    using Function = typename Fast<Accurate>::type;
    const Derivative<T, Function, kGate> derivative{x, dy, tile.cols};
    if (tile.value.columns != nullptr) {
      launch<true>(tile, derivative, stream);
    } else if (source.is_derivative()) {
      launch(tile, derivative, stream);
    } else {
      launch(tile, Activated<T, Function, kGate>{x, tile.cols}, stream);
    }
  });
}

void expect_aligned(int64_t rows, int64_t cols, const void* p) {
  if (rows % 16 == 0 && cols % 16 == 0 && is_aligned(p) && rows <= int64_t{kTile} * UINT16_MAX) {
    return;
  }
  throw ShapeError(std::string(kWho) + ": [" + std::to_string(rows) + ", " + std::to_string(cols) +
                   "] must have multiples of 16 rows and columns, at most 8 million rows, and "
                   "start at a multiple of 16 bytes");
}

ValueTile value_of(const Fp8Target& target, const Fp8Source& source) {
  const Fp8Value& value = target.value;
  if (value.columns.is_null()) return {};
  return {static_cast<uint8_t*>(value.columns.data), value.scale.as<float>(),
          Fp8Source{source.x, source.activation}.cols()};
}

}  // namespace

void fp8_quantize(const Fp8Target& target, const Fp8Source& source, ConstView scale,
                  Stream stream) {
  const TensorView& one = target.rows.is_null() ? target.columns : target.rows;
  const Tile tile{.rows = static_cast<uint8_t*>(target.rows.data),
                  .columns = static_cast<uint8_t*>(target.columns.data),
                  .inverse = target.inverse.is_null() ? nullptr : target.inverse.as<float>(),
                  .amax = target.amax.is_null() ? nullptr : target.amax.as<float>(),
                  .sums = target.sums.is_null() ? nullptr : target.sums.as<float>(),
                  .scale = scale.data == nullptr ? nullptr : scale.as<float>(),
                  .format = one.dtype == DType::kFloat8E5M2 ? __NV_E5M2 : __NV_E4M3,
                  .num_rows = source.rows(),
                  .cols = source.cols(),
                  .value = value_of(target, source)};
  if (tile.num_rows == 0 || tile.cols == 0) return;
  expect_aligned(tile.num_rows, tile.cols, source.x.data);
  if (source.is_derivative()) expect_aligned(tile.num_rows, tile.cols, source.dy.data);
  dispatch_floating(source.x.dtype, kWho,
                    [&]<class T>() { launch_source<T>(tile, source, stream); });
}

}  // namespace megatron::kernels::cuda
