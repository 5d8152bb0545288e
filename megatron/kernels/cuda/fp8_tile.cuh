#pragma once

#include <cuda_fp8.h>

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/fp8.h"

// Shared parts of the FP8 quantization kernels. A block takes a square tile of v, and a thread four
// packs of eight elements, one below the other. So a thread holds four adjacent elements of each
// column, one word of the transpose; the block transposes through shared memory and stores lines.
namespace megatron::kernels::cuda {

inline constexpr int kTile = 128;                      // rows and columns
inline constexpr int kRowsOfThread = 4;                // a word of the transpose
inline constexpr int kPacks = kTile / kVector;         // in a row of the tile
inline constexpr int kGroups = kTile / kRowsOfThread;  // of rows
inline constexpr int kTileThreads = kPacks * kGroups;
inline constexpr int kTileWarps = kTileThreads / kWarp;
static_assert(kTile == kFp8SumRows);
static_assert(kWarp == 2 * kPacks, "a warp has two groups of rows");

// The sources of v, for packs of eight columns: fetch() starts the loads, value() uses them.
template <class T>
struct Plain {
  const T* x;
  int64_t cols;

  static constexpr bool kIsPlain = true;
  static constexpr bool kIsDerivative = false;

  using Raw = RawPack<T>;
  __device__ Raw fetch(int64_t row, int64_t col) const { return load_pack(x + row * cols + col); }
  __device__ Floats value(const Raw& raw, int64_t) const { return unpacked(raw); }
};

template <class T, class Function, Gate kGate>
struct Activated {
  static constexpr bool kIsPlain = false;
  static constexpr bool kIsDerivative = false;
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
        v.values[i] = Function::value(v.values[i]) * linear_half<Function>(other.values[i]);
      } else {
        v.values[i] = linear_half<Function>(v.values[i]) * Function::value(other.values[i]);
      }
    }
    return v;
  }
};

template <class T, class Function, Gate kGate>
struct Derivative {
  static constexpr bool kIsPlain = false;
  static constexpr bool kIsDerivative = true;
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
        const float l = linear.values[i];
        v.values[i] *= is_gate ? linear_half<Function>(l) * Function::derivative(gate.values[i])
                               : linear_half_gradient<Function>(l, Function::value(gate.values[i]));
      }
    }
    return v;
  }
};

// Calls use() with the source as one of the classes above.
template <class Use>
void dispatch_source(const Fp8Source& source, const char* who, Use&& use) {
  const int64_t cols = source.cols();
  dispatch_floating(source.x.dtype, who, [&]<class T>() {
    const T* const x = source.x.as<T>();
    if (!source.activation) return use(Plain<T>{x, cols});
    dispatch_activation(*source.activation, [&]<class Function, Gate kGate>() {
      if (source.is_derivative()) {
        use(Derivative<T, Function, kGate>{x, source.dy.as<T>(), cols});
      } else {
        use(Activated<T, Function, kGate>{x, cols});
      }
    });
  });
}

// Throws ShapeError unless a matrix [rows, cols] that starts at p suits the kernels.
inline void expect_aligned(int64_t rows, int64_t cols, const void* p, const char* who) {
  if (rows % 16 == 0 && cols % 16 == 0 && is_aligned(p) && rows <= int64_t{kTile} * UINT16_MAX) {
    return;
  }
  throw ShapeError(std::string(who) + ": [" + std::to_string(rows) + ", " + std::to_string(cols) +
                   "] must have multiples of 16 rows and columns, at most 8 million rows, and "
                   "start at a multiple of 16 bytes");
}

// The larger one; NaN if one is.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// *amax = max(*amax, value), atomically; NaN wins.
__device__ inline void atomic_max(float* amax, float value) {
  // Numbers that are not negative compare as their bits do, and NaN is above all of them.
  const int bits = __float_as_int(value);
  if (bits > *reinterpret_cast<volatile int*>(amax)) atomicMax(reinterpret_cast<int*>(amax), bits);
}

// Eight elements in FP8.
__device__ inline uint2 quantized(const Floats& v, float scale, __nv_fp8_interpretation_t format) {
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
__device__ inline uint4 transposed(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(ab_low, cd_low, 0x5410), __byte_perm(ab_low, cd_low, 0x7632),
                    __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632));
}

// Swizzled index of a word of the transposed tile in shared memory. Words of a column stay in
// pairs, and a warp, which stores one column of each of its packs, has no bank conflicts.
__device__ inline int swizzled_index(int column, int group) {
  return column * kGroups + (group ^ 2 * (column / kVector));
}

// The words of a transposed tile.
using TileWords = uint32_t[kTile * kGroups];

// Transposes a thread's four rows of eight elements into one word for each of eight columns.
__device__ inline void transpose_into(TileWords& words, const uint2 (&stored)[kRowsOfThread],
                                      int pack, int group) {
  const uint4 low = transposed(stored[0].x, stored[1].x, stored[2].x, stored[3].x);
  const uint4 high = transposed(stored[0].y, stored[1].y, stored[2].y, stored[3].y);
  const uint32_t column_words[kVector] = {low.x,  low.y,  low.z,  low.w,
                                          high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < kVector; ++j)
    words[swizzled_index(pack * kVector + j, group)] = column_words[j];
}

// Half a warp stores a column of the tile, 128 bytes.
__device__ inline void store_columns(uint8_t* columns, const TileWords& words, int64_t tile_row,
                                     int64_t tile_col, int64_t num_rows, int64_t cols) {
  const int pair = threadIdx.x % kPacks;
  const int64_t row_of_pair = tile_row + 2 * kRowsOfThread * pair;
  if (row_of_pair >= num_rows) return;
  for (int column = threadIdx.x / kPacks; column < kTile; column += kTileThreads / kPacks) {
    if (tile_col + column >= cols) return;
    const uint2 two = *reinterpret_cast<const uint2*>(&words[swizzled_index(column, 2 * pair)]);
    *reinterpret_cast<uint2*>(columns + (tile_col + column) * num_rows + row_of_pair) = two;
  }
}

}  // namespace megatron::kernels::cuda
