#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatron {

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
    bool operator==(const ShortKey&) const = default;
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
  static ShortKey short_key(std::string_view word, int64_t readable);
  // Null if the word is not there. Good until the next insert.
  const ShortWord* find_short(const ShortKey& key) const {
    const Set& set = sets_[set_of(key)];
    if (set.words[0].key == key) return &set.words[0];
    if (set.words[1].key == key) return &set.words[1];
    return nullptr;
  }
  // REQUIRES: ids.size() <= kMaxShortIds.
  void insert_short(const ShortKey& key, std::span<const int32_t> ids);

  // Both kinds of words, for callers that are in no hurry. append_known() is false, and appends
  // nothing, if the word is not there. REQUIRES: the word is not empty.
  bool append_known(std::string_view word, std::vector<int32_t>& ids) const;
  void insert(std::string_view word, std::span<const int32_t> ids);

  const std::vector<int32_t>* find_long(std::string_view word) const;
  void insert_long(std::string_view word, std::span<const int32_t> ids);

 private:
  static constexpr size_t kMaxLongWords = size_t{1} << 15;
  static constexpr size_t kMaxLongBytes = 256;

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

}  // namespace megatron
