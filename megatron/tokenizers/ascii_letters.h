#pragma once

#include <bit>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace megatron {

// The number of consecutive ASCII letters at `p`. 0 if there are 16 or more, or if fewer than 16
// bytes are left: the caller then takes a slower path, character by character.
inline int64_t count_ascii_letters(const char* p, const char* end) {
  if (end - p < 16) return 0;
#ifdef __SSE2__
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
  const __m128i place = _mm_sub_epi8(lower, _mm_set1_epi8('a'));  // as unsigned: 0 to 25
  const __m128i is_letter = _mm_cmpeq_epi8(_mm_min_epu8(place, _mm_set1_epi8(25)), place);
  const int count = std::countr_one(static_cast<uint32_t>(_mm_movemask_epi8(is_letter)));
#else
  int count = 0;
  while (count < 16 && static_cast<uint8_t>((p[count] | 0x20) - 'a') < 26) ++count;
#endif
  return count < 16 ? count : 0;
}

}  // namespace megatron
