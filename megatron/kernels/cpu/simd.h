#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "megatron/core/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors of fp32, as wide as the processor's: 16 lanes with AVX-512, otherwise 8. Loads and stores
// convert from and to the 16-bit types. Arithmetic uses the compiler's vector types.
namespace megatron::kernels::cpu::simd {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MG_AVX512 1
inline constexpr int64_t kLanes = 16;
#else
#define MG_AVX512 0
inline constexpr int64_t kLanes = 8;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// Subtracting +0 changes no value, not even -0, so only the broadcast remains.
inline Vec broadcast(float x) { return x - Vec{}; }

#if MG_AVX512

inline Vec load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return Vec(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
}

inline Vec load(const Float16* p) {
  return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}

inline void store(BFloat16* p, Vec v) {
#if defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh(__m512(v));
  std::memcpy(static_cast<void*>(p), &rounded, sizeof rounded);
#else
  for (int64_t i = 0; i < kLanes; ++i) p[i] = BFloat16(v[i]);
#endif
}

inline void store(Float16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(__m512(v), 0));
}

// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
}

#else

template <class T>
Vec load(const T* p) {
  Vec v;
  for (int64_t i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

template <class T>
void store(T* p, Vec v) {
  for (int64_t i = 0; i < kLanes; ++i) p[i] = T(v[i]);
}

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__FMA__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return a * b + c;
#endif
}

#endif

// The first n of kLanes elements, the others 0. REQUIRES: 0 <= n <= kLanes.
template <class T>
Vec load_first(const T* p, int64_t n) {
  if (n == kLanes) return load(p);
  Vec v{};
  for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

template <class T>
void store_first(T* p, int64_t n, Vec v) {
  if (n == kLanes) return store(p, v);
  for (int64_t i = 0; i < n; ++i) p[i] = T(v[i]);
}

// Swaps rows and columns of a kLanes x kLanes block.
inline void transpose(std::array<Vec, kLanes>& rows) {
#if MG_AVX512
  __m512 a[16];
  __m512 b[16];
  for (size_t i = 0; i < 16; ++i) a[i] = __m512(rows[i]);
  for (size_t i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (size_t i = 0; i < 16; i += 4) {  // a[i + j]: column 4 * quarter + j of rows i .. i + 3
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (size_t j = 0; j < 4; ++j) {
    b[j] = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88);
    b[j + 4] = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
    b[j + 8] = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88);
    b[j + 12] = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
  }
  for (size_t j = 0; j < 4; ++j) {
    rows[j] = Vec(_mm512_shuffle_f32x4(b[j], b[j + 8], 0x88));
    rows[j + 8] = Vec(_mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd));
    rows[j + 4] = Vec(_mm512_shuffle_f32x4(b[j + 4], b[j + 12], 0x88));
    rows[j + 12] = Vec(_mm512_shuffle_f32x4(b[j + 4], b[j + 12], 0xdd));
  }
#else
  const std::array<Vec, kLanes> from = rows;
  for (size_t i = 0; i < kLanes; ++i) {
    for (size_t j = 0; j < kLanes; ++j) rows[i][j] = from[j][i];
  }
#endif
}

}  // namespace megatron::kernels::cpu::simd
