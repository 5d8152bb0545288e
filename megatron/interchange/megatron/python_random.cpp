#include "megatron/interchange/megatron/python_random.h"

#include <algorithm>
#include <cstddef>

namespace megatron {
namespace {

constexpr size_t kStateWords = 624;
// Bytes after the words of PyTorch's state: the cache of normal numbers, which is empty.
constexpr size_t kTorchStateBytes = 5056;

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::vector<uint32_t> mt19937_words(uint32_t seed) {
  std::vector<uint32_t> words(kStateWords);
  words[0] = seed;
  for (uint32_t i = 1; i < kStateWords; ++i) {
    words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
  }
  return words;
}

std::vector<uint32_t> mt19937_words_of_array(uint32_t seed) {
  std::vector<uint32_t> words = mt19937_words(19650218u);
  size_t i = 1;
  const auto advance = [&] {
    if (++i < kStateWords) return;
    words[0] = words[kStateWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kStateWords; ++k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1664525u)) + seed;
    advance();
  }
  for (size_t k = 0; k < kStateWords - 1; ++k) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1566083941u)) -
               static_cast<uint32_t>(i);
    advance();
  }
  words[0] = 0x80000000u;
  return words;
}

std::string torch_random_state(uint64_t seed) {
  std::string bytes;
  append(bytes, seed);
  append(bytes, int32_t{1});   // numbers left before the next twist
  append(bytes, int32_t{1});   // seeded
  append(bytes, uint64_t{0});  // next
  for (const uint32_t word : mt19937_words(static_cast<uint32_t>(seed))) {
    append(bytes, uint64_t{word});
  }
  bytes.resize(kTorchStateBytes, '\0');
  return bytes;
}

std::string cuda_random_state(uint64_t seed) {
  std::string bytes;
  append(bytes, seed);
  append(bytes, int64_t{0});  // offset
  return bytes;
}

}  // namespace megatron
