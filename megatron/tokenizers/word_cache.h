#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

static_assert(std::endian::native == std::endian::little, "WordKey masks the upper bytes");

// What a WordCache compares first. A word of up to kMaxBytes bytes is its key; the keys of longer
// words only hash them.
struct WordKey {
  static constexpr size_t kMaxBytes = 15;

  uint64_t low = 0;
  uint64_t high = 0;  // never 0; the last byte is the length, or kLong

  // REQUIRES: the word is not empty; at least `readable` bytes from word.data() on may be read.
  static WordKey of(std::string_view word, int64_t readable) {
    return word.size() <= kMaxBytes ? of_short(word, readable) : of_long(word);
  }
  bool operator==(const WordKey& other) const {
    return ((low ^ other.low) | (high ^ other.high)) == 0;
  }
  bool is_long() const { return high >> 56 == kLong; }
  // Its upper bits choose the slot.
  uint64_t hash() const { return low * 0x9E3779B97F4A7C15u + high * 0xC2B2AE3D27D4EB4Fu; }

 private:
  static constexpr uint64_t kLong = 255;
  // 16 bytes of ones, then 16 of zeros: a window of 16 bytes is a mask for any length.
  static constexpr std::array<uint8_t, 32> kMasks = [] {
    std::array<uint8_t, 32> masks{};
    for (size_t i = 0; i < 16; ++i) masks[i] = 0xFF;
    return masks;
  }();

  static uint64_t eight_bytes(const void* from) {
    uint64_t bytes;
    std::memcpy(&bytes, from, 8);
    return bytes;
  }
  static WordKey of_short(std::string_view word, int64_t readable) {
    const char* bytes = word.data();
    std::array<char, 16> copy{};
    if (readable < 16) bytes = std::copy(word.begin(), word.end(), copy.begin()) - word.size();
    // Without branches, as lengths cannot be predicted.
    const uint8_t* const mask = kMasks.data() + (16 - word.size());
    return {eight_bytes(bytes) & eight_bytes(mask),
            (eight_bytes(bytes + 8) & eight_bytes(mask + 8)) | (uint64_t{word.size()} << 56)};
  }
  static WordKey of_long(std::string_view word);
};

// Remembers the ids of words. Exact: a word is found only if all its bytes are equal. Bounded: a
// cache that is full forgets words. One thread.
//
// One table of slots of 32 bytes, so that a slot never crosses a cache line. A word lies in the
// first of kWindow slots, from the one that its hash chooses on, that was free. Up to three ids lie
// in the slot; more ids, and the bytes of long words, lie in two side arrays.
class WordCache {
 public:
  static constexpr size_t kMaxInlineIds = 3;

  struct alignas(32) Slot {
    WordKey key;
    std::array<int32_t, kMaxInlineIds> ids{};
    int32_t num_ids = 0;  // kAside: ids holds the place, the number and the place of the bytes

    bool is_free() const { return key.high == 0; }
  };

  // Starts small and grows to at most 2^log2_slots slots. REQUIRES: 5 < log2_slots < 32.
  explicit WordCache(int log2_slots = kDefaultLog2Slots);

  // The slot of a word with its ids inline; null if the word is not there, or not so.
  const Slot* find_inline(const WordKey& key, uint64_t hash) const {
    const Slot* const first = &slots_[hash >> shift_];
    for (const Slot* slot = first; slot < first + kWindow && !slot->is_free(); ++slot) {
      if (slot->key == key) return slot->num_ids == kAside ? nullptr : slot;
    }
    return nullptr;
  }
  // Fetches what find_inline() reads first.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }

  // Whether the word is known. Its ids go to `ids`, good until the next insert().
  bool find(std::string_view word, const WordKey& key, std::span<const int32_t>& ids) const;
  // REQUIRES: the word is not known.
  void insert(std::string_view word, const WordKey& key, std::span<const int32_t> ids);

 private:
  static constexpr int kDefaultLog2Slots = 19;  // 16 MB
  static constexpr size_t kWindow = 8;
  static constexpr int32_t kAside = -1;
  // Longer words are not kept: a text rarely repeats them.
  static constexpr size_t kMaxBytes = 256;
  static constexpr size_t kMaxAside = size_t{1} << 21;  // of ids, and of bytes

  void clear(int log2_slots);
  // The slot for a new word: a free one, or that of a word to be forgotten.
  Slot& slot_for(const WordKey& key);
  bool may_grow() const;
  void grow();

  int most_log2_slots_;
  int shift_ = 0;  // of a 64-bit hash, to a slot
  size_t num_words_ = 0;
  size_t next_victim_ = 0;
  std::vector<Slot> slots_;  // kWindow - 1 more than the hash chooses from
  std::vector<int32_t> aside_ids_;
  std::string aside_bytes_;
};

// Words on their way through a WordCache, in order. The table of a cache is larger than the fast
// memory of a core; a batch fetches the lines of all its words at once and waits once.
class WordBatch {
 public:
  explicit WordBatch(WordCache& cache) : cache_(cache) {}

  bool is_full() const { return size_ == kMaxWords; }
  // REQUIRES: not full; the word is not empty, at least `readable` bytes from word.data() on may be
  // read, and they stay until drain().
  void add(std::string_view word, int64_t readable) {
    const WordKey key = WordKey::of(word, readable);
    const uint64_t hash = key.hash();
    cache_.prefetch(hash);
    entries_[size_++] = {word, key, hash};
  }
  // Appends the ids of all words and empties the batch. encode(word, ids) appends the ids of a word
  // that the cache does not know, to ids that are empty before.
  template <class Encode>
  void drain(std::vector<int32_t>& ids, const Encode& encode) {
    constexpr size_t kInline = WordCache::kMaxInlineIds;
    std::array<int32_t, kMaxWords * kInline> known_ids;
    size_t used = 0;
    for (size_t i = 0; i < size_; ++i) {
      const Entry& entry = entries_[i];
      if (const WordCache::Slot* const known = cache_.find_inline(entry.key, entry.hash)) {
        std::memcpy(known_ids.data() + used, known->ids.data(), kInline * sizeof(int32_t));
        used += static_cast<size_t>(known->num_ids);
        continue;
      }
      ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
      used = 0;
      append_rare(entry, ids, encode);
    }
    ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
    size_ = 0;
  }

  // The same, but calls visit(word, ids) for each word instead.
  template <class Encode, class Visit>
  void drain_into(const Encode& encode, const Visit& visit) {
    for (size_t i = 0; i < size_; ++i) {
      const Entry& entry = entries_[i];
      std::span<const int32_t> known;
      if (!cache_.find(entry.word, entry.key, known)) known = encoded(entry, encode);
      visit(entry.word, known);
    }
    size_ = 0;
  }

 private:
  static constexpr size_t kMaxWords = 64;

  struct Entry {
    std::string_view word;
    WordKey key;
    uint64_t hash;
  };

  template <class Encode>
  std::span<const int32_t> encoded(const Entry& entry, const Encode& encode) {
    fresh_.clear();
    encode(entry.word, fresh_);
    cache_.insert(entry.word, entry.key, fresh_);
    return fresh_;
  }
  template <class Encode>
  void append_rare(const Entry& entry, std::vector<int32_t>& ids, const Encode& encode) {
    std::span<const int32_t> known;
    if (!cache_.find(entry.word, entry.key, known)) known = encoded(entry, encode);
    ids.insert(ids.end(), known.begin(), known.end());
  }

  WordCache& cache_;
  std::array<Entry, kMaxWords> entries_;
  size_t size_ = 0;
  std::vector<int32_t> fresh_;
};

}  // namespace megatron
