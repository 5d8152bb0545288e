#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "megatron/core/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors of fp32, as wide as the processor's: 16 lanes with AVX-512, otherwise 8. Loads and stores
// convert from and to the 16-bit types. The compiler's vector types serve both widths; intrinsics
// stand where those have no word for an instruction.
namespace megatron::kernels::cpu::simd {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MG_AVX512 1
inline constexpr int64_t kLanes = 16;
#else
#define MG_AVX512 0
inline constexpr int64_t kLanes = 8;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// Subtracting +0 changes no value, not even -0, so only the broadcast remains.
inline Vec broadcast(float x) { return x - Vec{}; }

#if MG_AVX512
// All lanes. Conversions with a mask start from zeros; without one GCC 12 warns, in some callers,
// that they start from nothing.
inline constexpr __mmask16 kAllLanes = 0xffff;
#endif

// Between 16 and 32 bits: GCC 12 takes detours for __builtin_convertvector().
inline Words widened(Halves halves) {
#if MG_AVX512
  return Words(_mm512_maskz_cvtepu16_epi32(kAllLanes, __m256i(halves)));
#elif defined(__AVX2__)
  return Words(_mm256_cvtepu16_epi32(__m128i(halves)));
#else
  return __builtin_convertvector(halves, Words);
#endif
}
// REQUIRES: each word is below 2^16.
inline Halves narrowed(Words words) {
#if MG_AVX512
  return Halves(_mm512_maskz_cvtepi32_epi16(kAllLanes, __m512i(words)));
#elif defined(__AVX2__)
  const __m256i all = __m256i(words);
  return Halves(_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#else
  return __builtin_convertvector(words, Halves);
#endif
}

// The numbers of bf16, or fp16, with these bits.
inline Vec from_bfloat16(Halves bits) { return Vec(widened(bits) << 16); }
inline Vec from_float16(Halves bits) {
#if MG_AVX512
  return Vec(_mm512_maskz_cvtph_ps(kAllLanes, __m256i(bits)));
#elif defined(__AVX2__) && defined(__F16C__)
  return Vec(_mm256_cvtph_ps(__m128i(bits)));
#else
  Vec v;
  for (int64_t i = 0; i < kLanes; ++i) v[i] = std::bit_cast<Float16>(uint16_t{bits[i]});
  return v;
#endif
}

template <class T>
Halves load_halves(const T* p) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  Halves bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
inline Vec load(const BFloat16* p) { return from_bfloat16(load_halves(p)); }
inline Vec load(const Float16* p) { return from_float16(load_halves(p)); }

inline void store(BFloat16* p, Vec v) {
#if MG_AVX512 && defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh(__m512(v));
#else
  // As BFloat16(float).
  const Words bits = Words(v);
  const Words to_even = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const Words is_nan = Words(Integers(bits & 0x7fffffffu) > 0x7f800000);
  const Halves rounded = narrowed((is_nan & (bits >> 16 | 0x40u)) | (~is_nan & to_even));
#endif
  std::memcpy(static_cast<void*>(p), &rounded, sizeof rounded);
}

inline void store(Float16* p, Vec v) {
#if MG_AVX512
  const __m256i rounded = _mm512_maskz_cvtps_ph(kAllLanes, __m512(v), 0);
  std::memcpy(static_cast<void*>(p), &rounded, sizeof rounded);
#elif defined(__AVX2__) && defined(__F16C__)
  const __m128i rounded = _mm256_cvtps_ph(__m256(v), 0);
  std::memcpy(static_cast<void*>(p), &rounded, sizeof rounded);
#else
  for (int64_t i = 0; i < kLanes; ++i) p[i] = Float16(v[i]);
#endif
}

// a * b + c, rounded once if the machine has FMA.
inline Vec fma(Vec a, Vec b, Vec c) {
#if MG_AVX512
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return a * b + c;
#endif
}

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
// 16 bytes of each row as words, column by column.
using Pieces = std::array<Vec, 4>;

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

// Word j of rows[lane] + at becomes lane `lane` of result[j]. Inlined by order, like its callers: a
// call in the loop of a product would put the sums on the stack.
template <class T>
[[gnu::always_inline]] inline Pieces load_words(const Rows<T>& rows, int64_t at) {
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

// Calls visit(j, column) for the elements of 16 bytes of each row, in order: element j of
// rows[lane] + at is lane `lane` of its column.
template <class Visit>
[[gnu::always_inline]] inline void for_each_column(const Rows<float>& rows, int64_t at,
                                                   const Visit& visit) {
  const Pieces words = load_words(rows, at);
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) visit(j, words[static_cast<size_t>(j)]);
}

template <class Visit>
[[gnu::always_inline]] inline void for_each_column(const Rows<BFloat16>& rows, int64_t at,
                                                   const Visit& visit) {
  const Pieces pairs = load_words(rows, at);
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    const Words bits = Words(pairs[static_cast<size_t>(j)]);
    visit(2 * j, Vec(bits << 16));
    visit(2 * j + 1, Vec(bits & 0xffff0000u));
  }
}

template <class Visit>
[[gnu::always_inline]] inline void for_each_column(const Rows<Float16>& rows, int64_t at,
                                                   const Visit& visit) {
  const Pieces pairs = load_words(rows, at);
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    const Words bits = Words(pairs[static_cast<size_t>(j)]);
    visit(2 * j, from_float16(narrowed(bits & 0xffffu)));
    visit(2 * j + 1, from_float16(narrowed(bits >> 16)));
  }
}

template <class Visit>
[[gnu::always_inline]] inline void for_each_column(const Rows<int8_t>& rows, int64_t at,
                                                   const Visit& visit) {
  const Pieces words = load_words(rows, at);
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    const Words bits = Words(words[static_cast<size_t>(j)]);
#pragma GCC unroll 4
    for (int byte = 0; byte < 4; ++byte) {
      const Integers number = Integers(bits << (24 - 8 * byte)) >> 24;
      visit(4 * j + byte, __builtin_convertvector(number, Vec));
    }
  }
}

// All bits of the first n lanes. REQUIRES: 0 <= n <= kLanes.
inline Words bits_of_first(int64_t n) {
  Words bits;
  for (int64_t i = 0; i < kLanes; ++i) bits[i] = i < n ? ~0u : 0u;
  return bits;
}

}  // namespace megatron::kernels::cpu::simd
