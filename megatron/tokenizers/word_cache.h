#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatron {

static_assert(std::endian::native == std::endian::little, "short_key masks the upper bytes");

// Remembers the ids of words. Bounded: a full cache forgets. One thread.
//
// Nearly all words of a text are short and repeat, so words of up to 15 bytes and 3 ids live in a
// fixed two-way table whose sets are one cache line; the others in an ordinary hash table.
class WordCache {
 public:
  static constexpr int32_t kMaxShortBytes = 15;
  static constexpr int32_t kMaxShortIds = 3;

  // A short word as two numbers: its bytes, zero padded, and its length in the last byte.
  struct ShortKey {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const ShortKey& other) const {
      return ((low ^ other.low) | (high ^ other.high)) == 0;
    }
  };
  struct ShortWord {
    ShortKey key;  // high is 0 in an empty slot, as no word has length 0
    std::array<int32_t, kMaxShortIds> ids{};
    int32_t num_ids = 0;
  };

  // The size of a cache for one text: a large one costs more than a short text does.
  static int log2_sets_for(size_t text_bytes, int most);

  // Holds 2^(log2_sets + 1) short words, 32 bytes each. REQUIRES: 0 < log2_sets < 32.
  explicit WordCache(int log2_sets);

  // REQUIRES: 0 < word.size() <= kMaxShortBytes; at least `readable` bytes from word.data() on
  // may be read.
  static ShortKey short_key(std::string_view word, int64_t readable) {
    std::array<uint64_t, 2> bytes{};
    if (readable >= 16) {
      std::memcpy(bytes.data(), word.data(), 16);
    } else {
      std::memcpy(bytes.data(), word.data(), word.size());
    }
    // Without branches, as lengths cannot be predicted.
    std::array<uint64_t, 2> mask;
    std::memcpy(mask.data(), kMasks.data() + (16 - word.size()), 16);
    return {bytes[0] & mask[0], (bytes[1] & mask[1]) | (uint64_t{word.size()} << 56)};
  }
  // Null if the word is not there. Good until the next insert.
  const ShortWord* find_short(const ShortKey& key) const {
    const Set& set = sets_[set_of(key)];
    const ShortWord& word = set.words[set.words[1].key == key ? 1 : 0];
    return word.key == key ? &word : nullptr;
  }
  // Fetches what find_short() will read.
  void prefetch(const ShortKey& key) const { __builtin_prefetch(&sets_[set_of(key)]); }
  // REQUIRES: ids.size() <= kMaxShortIds.
  void insert_short(const ShortKey& key, std::span<const int32_t> ids);

  // Both kinds of words, for callers that are in no hurry. append_known() is false, and appends
  // nothing, if the word is not there. REQUIRES: the word is not empty.
  bool append_known(std::string_view word, std::vector<int32_t>& ids) const;
  void insert(std::string_view word, std::span<const int32_t> ids);

  const std::vector<int32_t>* find_long(std::string_view word) const;
  void insert_long(std::string_view word, std::span<const int32_t> ids);

 private:
  static constexpr size_t kMaxLongWords = size_t{1} << 17;
  static constexpr size_t kMaxLongBytes = 256;

  // 16 bytes of ones, then 16 of zeros: a window of 16 bytes is a mask for any length.
  static constexpr std::array<uint8_t, 32> kMasks = [] {
    std::array<uint8_t, 32> masks{};
    std::fill_n(masks.begin(), 16, uint8_t{0xFF});
    return masks;
  }();

  struct alignas(64) Set {
    std::array<ShortWord, 2> words;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  size_t set_of(const ShortKey& key) const {
    const uint64_t mixed = (key.low ^ (key.high * 0xC2B2AE3D27D4EB4Fu)) * 0x9E3779B97F4A7C15u;
    return (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u >> shift_;
  }

  int shift_;  // of a 64-bit hash, to a set number
  std::vector<Set> sets_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> long_words_;
};

// Words on their way through a WordCache, in order. The table of a cache is larger than the fast
// memory of a core; a batch fetches the lines of all its words at once and waits once.
class WordBatch {
 public:
  explicit WordBatch(const WordCache& cache) : cache_(cache) {}

  bool is_full() const { return size_ == kMaxWords; }
  // REQUIRES: not full; the word is not empty, at least `readable` bytes from word.data() on may be
  // read, and they stay until drain().
  void add(std::string_view word, int64_t readable) {
    Entry& entry = entries_[size_++];
    entry.word = word;
    entry.is_short = word.size() <= WordCache::kMaxShortBytes;
    if (!entry.is_short) return;
    entry.key = WordCache::short_key(word, readable);
    cache_.prefetch(entry.key);
  }
  // Appends the ids of all words and empties the batch. encode(word) gives the ids of a word that
  // the short table has not, as a span that is good until its next call; it may change the cache.
  template <class Encode>
  void drain(std::vector<int32_t>& ids, const Encode& encode) {
    std::array<int32_t, kMaxWords * WordCache::kMaxShortIds> known_ids;
    size_t used = 0;
    for (size_t i = 0; i < size_; ++i) {
      const Entry& entry = entries_[i];
      const WordCache::ShortWord* const known =
          entry.is_short ? cache_.find_short(entry.key) : nullptr;
      if (known != nullptr) {
        std::copy(known->ids.begin(), known->ids.end(), known_ids.begin() + used);
        used += static_cast<size_t>(known->num_ids);
        continue;
      }
      ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
      used = 0;
      const std::span<const int32_t> fresh = encode(entry.word);
      ids.insert(ids.end(), fresh.begin(), fresh.end());
    }
    ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
    size_ = 0;
  }

 private:
  static constexpr size_t kMaxWords = 64;

  struct Entry {
    std::string_view word;
    WordCache::ShortKey key;
    bool is_short = false;
  };

  const WordCache& cache_;
  std::array<Entry, kMaxWords> entries_;
  size_t size_ = 0;
};

}  // namespace megatron
