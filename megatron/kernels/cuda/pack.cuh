#pragma once

#include <cstdint>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/view.h"
#include "megatron/device/host_device.h"
#include "megatron/kernels/cuda/launch.cuh"

// Rows of tensors in packs of eight elements, which one thread holds as floats. If the dtype is a
// template argument, a pack stays in registers as it is in memory. If the dtype is known only at
// run time, each access has a branch that all threads take alike.
namespace megatron::kernels::cuda {

// Eight elements as floats.
struct Floats {
  float values[kVector];
};

// Eight elements of T as in memory: 16 bytes, or 32 for fp32.
template <class T>
struct RawPack {
  static constexpr int kWords = kVector * static_cast<int>(sizeof(T)) / 4;
  uint32_t words[kWords];
};

template <class T>
__device__ inline Floats unpacked(const RawPack<T>& raw);

template <>
__device__ inline Floats unpacked(const RawPack<float>& raw) {
  Floats pack;
#pragma unroll
  for (int i = 0; i < kVector; ++i) pack.values[i] = __uint_as_float(raw.words[i]);
  return pack;
}

template <>
__device__ inline Floats unpacked(const RawPack<BFloat16>& raw) {
  Floats pack;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    pack.values[2 * i] = __uint_as_float(raw.words[i] << 16);
    pack.values[2 * i + 1] = __uint_as_float(raw.words[i] & 0xFFFF0000u);
  }
  return pack;
}

template <>
__device__ inline Floats unpacked(const RawPack<Float16>& raw) {
  Floats pack;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&raw.words[i]));
    pack.values[2 * i] = two.x;
    pack.values[2 * i + 1] = two.y;
  }
  return pack;
}

// Rounds to nearest even.
template <class T>
__device__ inline RawPack<T> packed(const Floats& pack);

template <>
__device__ inline RawPack<float> packed(const Floats& pack) {
  RawPack<float> raw;
#pragma unroll
  for (int i = 0; i < kVector; ++i) raw.words[i] = __float_as_uint(pack.values[i]);
  return raw;
}

template <>
__device__ inline RawPack<BFloat16> packed(const Floats& pack) {
  RawPack<BFloat16> raw;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(pack.values[2 * i], pack.values[2 * i + 1]);
    raw.words[i] = *reinterpret_cast<const uint32_t*>(&two);
  }
  return raw;
}

template <>
__device__ inline RawPack<Float16> packed(const Floats& pack) {
  RawPack<Float16> raw;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const __half2 two = __floats2half2_rn(pack.values[2 * i], pack.values[2 * i + 1]);
    raw.words[i] = *reinterpret_cast<const uint32_t*>(&two);
  }
  return raw;
}

// REQUIRES: p is a multiple of 16 bytes.
template <class T>
__device__ inline RawPack<T> load_pack(const T* p) {
  RawPack<T> raw;
#pragma unroll
  for (int i = 0; i < RawPack<T>::kWords / 4; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(p)[i];
    raw.words[4 * i] = four.x;
    raw.words[4 * i + 1] = four.y;
    raw.words[4 * i + 2] = four.z;
    raw.words[4 * i + 3] = four.w;
  }
  return raw;
}

// REQUIRES: p is a multiple of 16 bytes.
template <class T>
__device__ inline void store_pack(T* p, const RawPack<T>& raw) {
#pragma unroll
  for (int i = 0; i < RawPack<T>::kWords / 4; ++i) {
    reinterpret_cast<uint4*>(p)[i] = make_uint4(raw.words[4 * i], raw.words[4 * i + 1],
                                                raw.words[4 * i + 2], raw.words[4 * i + 3]);
  }
}

// dispatch_floating for device code.
template <class F>
__device__ inline void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBFloat16) {
    f(static_cast<BFloat16*>(nullptr));
  } else if (dtype == DType::kFloat32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<Float16*>(nullptr));
  }
}

// Eight elements of any dtype as in memory.
using Words = RawPack<float>;

// A tensor that a kernel reads, with a dtype known at run time.
struct Source {
  const void* data;
  DType dtype;
  bool is_wide;  // packs are multiples of 16 bytes and whole

  MG_HOST_DEVICE bool is_null() const { return data == nullptr; }

  // Elements [at, at + n), n <= 8, and 0 beyond n. Wide loads are not awaited before floats(), so
  // the loads of several tensors overlap.
  __device__ Words fetch(int64_t at, int n) const {
    Words raw{};
    const bool is_float = dtype == DType::kFloat32;
    if (is_wide) {
      const auto* p = static_cast<const uint4*>(data) + (is_float ? at / 4 : at / 8);
      const uint4 low = p[0];
      uint4 high = make_uint4(0, 0, 0, 0);
      if (is_float) high = p[1];
      raw = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else if (is_float) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (i < n) raw.words[i] = static_cast<const uint32_t*>(data)[at + i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const uint32_t half = i < n ? static_cast<const uint16_t*>(data)[at + i] : 0u;
        raw.words[i / 2] |= half << (16 * (i % 2));
      }
    }
    return raw;
  }

  // Prefetches a wide pack into the L2 cache. Safe while another kernel may still write it: only
  // fetch() reads.
  __device__ void prefetch(int64_t at) const {
    if (is_null()) return;
    const char* const from =
        static_cast<const char*>(data) + at * (dtype == DType::kFloat32 ? 4 : 2);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
  }

  __device__ Floats floats(const Words& raw) const {
    if (dtype == DType::kFloat32) return unpacked(raw);
    const uint32_t(&w)[8] = raw.words;
    if (dtype == DType::kBFloat16) return unpacked(RawPack<BFloat16>{{w[0], w[1], w[2], w[3]}});
    return unpacked(RawPack<Float16>{{w[0], w[1], w[2], w[3]}});
  }

  __device__ Floats read(int64_t at, int n) const { return floats(fetch(at, n)); }

  __device__ float operator[](int64_t at) const {
    float value = 0;
    with_type(dtype, [&]<class T>(T*) { value = to_float(static_cast<const T*>(data)[at]); });
    return value;
  }
};

// A tensor that a kernel writes.
struct Sink {
  void* data;
  DType dtype;
  bool is_wide;

  MG_HOST_DEVICE bool is_null() const { return data == nullptr; }

  __device__ void write(int64_t at, int n, const Floats& pack) const {
    with_type(dtype, [&]<class T>(T*) {
      T* p = static_cast<T*>(data) + at;
      if (is_wide) {
        store_pack(p, packed<T>(pack));
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (i < n) p[i] = from_float<T>(pack.values[i]);
        }
      }
    });
  }

  __device__ void set(int64_t at, float value) const {
    with_type(dtype, [&]<class T>(T*) { static_cast<T*>(data)[at] = from_float<T>(value); });
  }
  // y = beta * y + sum; does not read y if beta is 0.
  __device__ void accumulate(int64_t at, float sum, float beta) const {
    set(at, beta == 0 ? sum : fmaf(beta, Source{data, dtype, false}[at], sum));
  }
};

// True if every multiple of `width` elements starts a 16-byte access of whole packs.
inline bool is_wide(ConstView x, int64_t width) {
  return width % kVector == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

// Throw DtypeError, which names `who`, unless x is fp32, fp16 or bf16. Packs are counted from
// multiples of `width` elements.
inline Source source_of(ConstView x, int64_t width, const char* who) {
  expect_floating(x.dtype, who);
  return {x.data, x.dtype, is_wide(x, width)};
}
inline Sink sink_of(TensorView y, int64_t width, const char* who) {
  expect_floating(y.dtype, who);
  return {y.data, y.dtype, is_wide(y, width)};
}

inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One thread for each pack of a matrix. Threads of one row are neighbours; a block has several rows
// if they are narrow. Blocks start with the last rows, as other kernels here: the kernel before
// wrote those last, so that they may still be in the L2 cache, and the next one starts with the
// first rows.
struct RowGrid {
  dim3 grid;
  dim3 block;
};
inline RowGrid row_grid(int64_t rows, int64_t cols, const char* who) {
  const int64_t packs = divided_up(cols, kVector);
  unsigned x = 1;
  while (x < packs && x < kThreads) x *= 2;
  const int64_t blocks = divided_up(rows, kThreads / x) * divided_up(packs, x);
  if (blocks > INT32_MAX) {
    throw ShapeError(std::string(who) + ": [" + std::to_string(rows) + ", " + std::to_string(cols) +
                     "] exceeds one launch; use a smaller micro-batch");
  }
  return {dim3(static_cast<unsigned>(blocks)), dim3(x, kThreads / x)};
}

// The pack of a thread of a RowGrid.
struct RowPack {
  int64_t row;
  int64_t column;
  int count;  // columns left, at most 8; none if not positive

  __device__ RowPack(int64_t rows, int64_t cols) {
    const auto packs = static_cast<unsigned>((cols + kVector - 1) / kVector);
    const unsigned blocks_of_row = (packs + blockDim.x - 1) / blockDim.x;
    const unsigned block = gridDim.x - 1 - blockIdx.x;
    row = static_cast<int64_t>(block / blocks_of_row) * blockDim.y + threadIdx.y;
    column = (static_cast<int64_t>(block % blocks_of_row) * blockDim.x + threadIdx.x) * kVector;
    const int64_t left = row < rows ? cols - column : 0;
    count = left < kVector ? static_cast<int>(left) : kVector;
  }
};

}  // namespace megatron::kernels::cuda
