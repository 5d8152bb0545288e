#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

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

// One pointer a lane: kLanes rows of a matrix.
template <class T>
using Rows = std::array<const T*, static_cast<size_t>(kLanes)>;
// 16 bytes of each row, column by column.
template <class T>
using Columns = std::array<Vec, 16 / sizeof(T)>;

// 16 bytes of each row from rows[first] on, every fourth row.
template <class T>
Vec load_pieces(const Rows<T>& rows, size_t first, int64_t at) {
#if defined(__AVX2__)
  const auto piece = [&](size_t row) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(rows[row] + at));
  };
#endif
#if MG_AVX512
  __m512 pieces = _mm512_castps128_ps512(piece(first));
  pieces = _mm512_insertf32x4(pieces, piece(first + 4), 1);
  pieces = _mm512_insertf32x4(pieces, piece(first + 8), 2);
  return Vec(_mm512_insertf32x4(pieces, piece(first + 12), 3));
#elif defined(__AVX2__)
  return Vec(_mm256_set_m128(piece(first + 4), piece(first)));
#else
  Vec pieces;
  for (size_t i = 0; i < static_cast<size_t>(kLanes); i += 4) {
    std::memcpy(reinterpret_cast<float*>(&pieces) + i, rows[first + i] + at, 16);
  }
  return pieces;
#endif
}

// The first (kHalf = 0) or last two words of each four lanes of a and b in turn, kUnit words at a
// time.
template <size_t kHalf, size_t kUnit, size_t... kLane>
Vec interleaved(Vec a, Vec b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(a, b,
                                 (kLane / 4 * 4 + 2 * kHalf + kLane % 4 / (2 * kUnit) * kUnit +
                                  kLane % kUnit + kLane / kUnit % 2 * kLanes)...);
}
template <size_t kHalf, size_t kUnit>
Vec interleaved(Vec a, Vec b) {
  return interleaved<kHalf, kUnit>(a, b, std::make_index_sequence<static_cast<size_t>(kLanes)>());
}

// Words of 32 bits: word j of rows[lane] + at becomes lane `lane` of result[j].
template <class T>
Columns<float> load_words(const Rows<T>& rows, int64_t at) {
  const Vec row0 = load_pieces(rows, 0, at);
  const Vec row1 = load_pieces(rows, 1, at);
  const Vec row2 = load_pieces(rows, 2, at);
  const Vec row3 = load_pieces(rows, 3, at);
  const Vec low01 = interleaved<0, 1>(row0, row1);
  const Vec high01 = interleaved<1, 1>(row0, row1);
  const Vec low23 = interleaved<0, 1>(row2, row3);
  const Vec high23 = interleaved<1, 1>(row2, row3);
  return {interleaved<0, 2>(low01, low23), interleaved<1, 2>(low01, low23),
          interleaved<0, 2>(high01, high23), interleaved<1, 2>(high01, high23)};
}

// Element j of rows[lane] + at becomes lane `lane` of result[j].
template <class T>
Columns<T> load_columns(const Rows<T>& rows, int64_t at) {
  Columns<T> columns;
  for (size_t j = 0; j < columns.size(); ++j) {
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      columns[j][lane] = static_cast<float>(rows[lane][at + static_cast<int64_t>(j)]);
    }
  }
  return columns;
}

inline Columns<float> load_columns(const Rows<float>& rows, int64_t at) {
  return load_words(rows, at);
}

#if MG_AVX512
inline Columns<int8_t> load_columns(const Rows<int8_t>& rows, int64_t at) {
  const Columns<float> words = load_words(rows, at);
  Columns<int8_t> columns;
  for (size_t j = 0; j < words.size(); ++j) {
    const __m512i bits = _mm512_castps_si512(__m512(words[j]));
    for (unsigned byte = 0; byte < 4; ++byte) {
      const __m512i number = _mm512_srai_epi32(_mm512_slli_epi32(bits, 24 - 8 * byte), 24);
      columns[4 * j + byte] = Vec(_mm512_cvtepi32_ps(number));
    }
  }
  return columns;
}

inline Columns<BFloat16> load_columns(const Rows<BFloat16>& rows, int64_t at) {
  const Columns<float> pairs = load_words(rows, at);
  Columns<BFloat16> columns;
  for (size_t j = 0; j < pairs.size(); ++j) {
    const __m512i bits = _mm512_castps_si512(__m512(pairs[j]));
    columns[2 * j] = Vec(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
    columns[2 * j + 1] = Vec(_mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))));
  }
  return columns;
}

inline Columns<Float16> load_columns(const Rows<Float16>& rows, int64_t at) {
  const Columns<float> pairs = load_words(rows, at);
  Columns<Float16> columns;
  for (size_t j = 0; j < pairs.size(); ++j) {
    const __m512i bits = _mm512_castps_si512(__m512(pairs[j]));
    columns[2 * j] = Vec(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)));
    columns[2 * j + 1] = Vec(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16))));
  }
  return columns;
}
#endif

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
