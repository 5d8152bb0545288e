#include "annex/corpus/min_hash.h"

#include <algorithm>
#include <bit>

#include "megatron/data/numpy_random.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kSeedLimit = 1000000;

constexpr uint32_t mixed_block(uint32_t block) {
  return std::rotl(block * 0xcc9e2d51u, 15) * 0x1b873593u;
}

constexpr uint32_t with_block(uint32_t hash, uint32_t block) {
  return std::rotl(hash ^ mixed_block(block), 13) * 5 + 0xe6546b64u;
}

constexpr uint32_t finished(uint32_t hash, uint32_t size) {
  hash ^= size;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return hash ^ (hash >> 16);
}

// Up to four bytes as a little-endian number.
uint32_t number_of(std::string_view bytes) {
  uint32_t number = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return number;
}

}  // namespace

uint32_t murmur3_32(std::string_view bytes, uint32_t seed) {
  const auto size = static_cast<uint32_t>(bytes.size());
  uint32_t hash = seed;
  for (; bytes.size() >= 4; bytes.remove_prefix(4)) {
    hash = with_block(hash, number_of(bytes.substr(0, 4)));
  }
  return finished(hash ^ mixed_block(number_of(bytes)), size);
}

std::vector<uint32_t> min_hash_seeds(int64_t count, uint32_t seed) {
  NumpyRandom random(seed);
  std::vector<uint32_t> seeds;
  for (int64_t i = 0; i < count; ++i) {
    seeds.push_back(static_cast<uint32_t>(random.randint(0, kSeedLimit)));
  }
  return seeds;
}

std::vector<uint32_t> MinHasher::fingerprint(std::string_view text) {
  ngrams_.clear();
  for (size_t i = 0; i + kNgramBytes <= text.size(); ++i) {
    ngrams_.push_back(uint64_t{number_of(text.substr(i, 4))} << 8 |
                      static_cast<unsigned char>(text[i + 4]));
  }
  std::ranges::sort(ngrams_);
  ngrams_.erase(std::unique(ngrams_.begin(), ngrams_.end()), ngrams_.end());

  std::vector<uint32_t> least(seeds_.size(), UINT32_MAX);
  for (const uint64_t ngram : ngrams_) {
    // murmur3_32 of the five bytes; the loop over seeds has no branches, so it becomes SIMD code.
    const auto block = static_cast<uint32_t>(ngram >> 8);
    const uint32_t tail = mixed_block(static_cast<uint32_t>(ngram & 255));
    for (size_t i = 0; i < seeds_.size(); ++i) {
      least[i] =
          std::min(least[i], finished(with_block(seeds_[i], block) ^ tail, uint32_t{kNgramBytes}));
    }
  }
  return least;
}

}  // namespace megatron::corpus
