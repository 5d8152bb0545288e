#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace megatron::corpus {

// MurmurHash3_x86_32 of Austin Appleby.
uint32_t murmur3_32(std::string_view bytes, uint32_t seed);

// `count` seeds, uniform in [0, 1e6), drawn from NumpyRandom(seed) in this order.
std::vector<uint32_t> min_hash_seeds(int64_t count, uint32_t seed);

// Fingerprints of texts (Broder 1997): value i is the least murmur3_32 with seed i over the set of
// the text's 5-byte n-grams. Two texts agree in a value with the probability of their n-grams'
// Jaccard similarity. A text of less than 5 bytes has 2^32 - 1 everywhere. One object a thread.
class MinHasher {
 public:
  static constexpr size_t kNgramBytes = 5;

  explicit MinHasher(std::vector<uint32_t> seeds) : seeds_(std::move(seeds)) {}

  std::vector<uint32_t> fingerprint(std::string_view text);

 private:
  std::vector<uint32_t> seeds_;
  std::vector<uint64_t> ngrams_;  // reused
};

}  // namespace megatron::corpus
