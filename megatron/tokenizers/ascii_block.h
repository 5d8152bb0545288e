#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace megatron {

// 64 bytes of text, classified in parallel. A result has one bit for each byte, the lowest for the
// first.
class AsciiBlock {
 public:
  static constexpr int64_t kBytes = 64;

  // REQUIRES: kBytes bytes at `p` may be read.
  explicit AsciiBlock(const char* p);

  uint64_t non_ascii() const;
  // Letters of either case.
  uint64_t letters() const;
  // The bytes from `first` on, `count` of them.
  uint64_t range(char first, int count) const;
  uint64_t equal(char c) const;

 private:
#if defined(__AVX512BW__)
  __m512i bytes_;
#else
#if defined(__AVX2__)
  static constexpr int64_t kPartBytes = 32;
#else
  static constexpr int64_t kPartBytes = 16;
#endif
  typedef uint8_t Part __attribute__((vector_size(kPartBytes)));
  // The highest bit of each byte.
  static uint64_t highest_bits(Part part) {
#if defined(__AVX2__)
    return static_cast<uint32_t>(_mm256_movemask_epi8(__m256i(part)));
#elif defined(__SSE2__)
    return static_cast<uint32_t>(_mm_movemask_epi8(__m128i(part)));
#else
    uint64_t bits = 0;
    for (int64_t i = 0; i < kPartBytes; ++i) bits |= uint64_t{part[i]} >> 7 << i;
    return bits;
#endif
  }
  // test: maps a part to bytes with all bits set, or at least the highest, where the condition
  // holds.
  template <class Test>
  uint64_t ask(const Test& test) const {
    uint64_t bits = 0;
    for (int64_t i = 0; i < kBytes / kPartBytes; ++i) {
      bits |= highest_bits(Part(test(parts_[i]))) << (kPartBytes * i);
    }
    return bits;
  }
  Part parts_[kBytes / kPartBytes];
#endif
};

#if defined(__AVX512BW__)

inline AsciiBlock::AsciiBlock(const char* p) : bytes_(_mm512_loadu_si512(p)) {}
inline uint64_t AsciiBlock::non_ascii() const { return _mm512_movepi8_mask(bytes_); }
inline uint64_t AsciiBlock::equal(char c) const {
  return _mm512_cmpeq_epi8_mask(bytes_, _mm512_set1_epi8(c));
}
inline uint64_t AsciiBlock::range(char first, int count) const {
  const __m512i place = _mm512_sub_epi8(bytes_, _mm512_set1_epi8(first));
  return _mm512_cmplt_epu8_mask(place, _mm512_set1_epi8(static_cast<char>(count)));
}
inline uint64_t AsciiBlock::letters() const {
  const __m512i lower = _mm512_or_si512(bytes_, _mm512_set1_epi8(0x20));
  const __m512i place = _mm512_sub_epi8(lower, _mm512_set1_epi8('a'));
  return _mm512_cmplt_epu8_mask(place, _mm512_set1_epi8(26));
}

#else

inline AsciiBlock::AsciiBlock(const char* p) {
  for (Part& part : parts_) {  // one copy of all would go through memory
    std::memcpy(&part, p, kPartBytes);
    p += kPartBytes;
  }
}
inline uint64_t AsciiBlock::non_ascii() const {
  return ask([](Part part) { return part; });
}
inline uint64_t AsciiBlock::equal(char c) const {
  return ask([&](Part part) { return part == static_cast<uint8_t>(c); });
}
inline uint64_t AsciiBlock::range(char first, int count) const {
  return ask(
      [&](Part part) { return part - static_cast<uint8_t>(first) < static_cast<uint8_t>(count); });
}
inline uint64_t AsciiBlock::letters() const {
  return ask([](Part part) { return (part | uint8_t{0x20}) - uint8_t{'a'} < uint8_t{26}; });
}

#endif

// The bits [0, count). REQUIRES: 0 <= count <= 64.
inline uint64_t low_bits(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// The first bytes of the characters U+2010 to U+2027 (dashes, quotes and dots, the most frequent
// non-ASCII characters in English text, each of three bytes) that lie completely in the block.
inline uint64_t firsts_of_signs(const AsciiBlock& block) {
  return block.equal('\xE2') & block.equal('\x80') >> 1 & block.range('\x90', 24) >> 2;
}

// Calls emit(word) for the words from `begin` on that end at the bits of `ends` in a block of 64
// bytes, in order; moves `begin` past them. An emit with a function until() takes them all in one
// call. REQUIRES: no bit is at or before `begin`.
template <class Emit>
void emit_words(const char*& begin, const char* block, uint64_t ends, const Emit& emit) {
  if constexpr (requires { emit.until(begin, block, ends); }) {
    if (ends != 0) emit.until(begin, block, ends);
  } else {
    for (; ends != 0; ends &= ends - 1) {
      const char* const end = block + std::countr_zero(ends);
      emit(std::string_view(begin, static_cast<size_t>(end - begin)));
      begin = end;
    }
  }
}

// Calls visit(const char*) for each byte of the text whose bit is set in find(AsciiBlock), in
// order.
template <class Find, class Visit>
void for_each_byte(std::string_view text, const Find& find, const Visit& visit) {
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto visit_all = [&](uint64_t bits) {
    for (; bits != 0; bits &= bits - 1) visit(p + std::countr_zero(bits));
  };
  for (; end - p >= AsciiBlock::kBytes; p += AsciiBlock::kBytes) visit_all(find(AsciiBlock(p)));
  std::array<char, AsciiBlock::kBytes> rest{};
  std::copy(p, end, rest.begin());
  visit_all(find(AsciiBlock(rest.data())) & low_bits(end - p));
}

}  // namespace megatron
