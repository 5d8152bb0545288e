#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/core/cache_line_vector.h"
#include "megatron/tokenizers/ascii_block.h"

namespace megatron {

static_assert(std::endian::native == std::endian::little, "WordKey masks the upper bytes");

// Key of a word in WordCache: the word itself up to kMaxBytes bytes; a hash for longer words.
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
  // The upper bits choose the slot.
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
    if (readable < 16) return of_copied(word);
    // Without branches, as lengths cannot be predicted.
    const char* const bytes = word.data();
    const uint8_t* const mask = kMasks.data() + (16 - word.size());
    return {eight_bytes(bytes) & eight_bytes(mask),
            (eight_bytes(bytes + 8) & eight_bytes(mask + 8)) | (uint64_t{word.size()} << 56)};
  }
  static WordKey of_copied(std::string_view word);
  static WordKey of_long(std::string_view word);
};

// Caches the ids of words. Exact: a hit needs all bytes equal. Bounded: a full cache evicts words.
// Not thread safe.
//
// A table of 32-byte slots, two per cache line. A word is in the first slot that was free of the
// kWindow slots from its hash's cache line on. A slot holds up to three ids; longer lists of ids,
// and the bytes of long words, are in two side arrays.
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

  // A read-only view of the table, valid until the next insert(), whose members can stay in
  // registers.
  class Reader {
   public:
    explicit Reader(const WordCache& cache) : slots_(cache.slots_.data()), shift_(cache.shift_) {}

    // The slot of a word whose ids are inline; null otherwise.
    const Slot* find_inline(const WordKey& key, uint64_t hash) const {
      const Slot* slot = slots_ + first_slot(hash, shift_);
      const Slot* const end = slot + kWindow;
      do {
        // Branch-free: the slot within a line is unpredictable.
        const Slot* const candidate = slot + (slot[1].key == key ? 1 : 0);
        if (candidate->key == key) return candidate->num_ids == kAside ? nullptr : candidate;
        slot += kLineSlots;
      } while (slot < end && !slot[-1].is_free());
      return nullptr;
    }
    // Prefetches the first cache line that find_inline() reads.
    void prefetch(uint64_t hash) const { __builtin_prefetch(slots_ + first_slot(hash, shift_)); }

   private:
    const Slot* slots_;
    int shift_;
  };

  // True if the word is cached; sets `ids`, valid until the next insert().
  bool find(std::string_view word, const WordKey& key, std::span<const int32_t>& ids) const;
  // REQUIRES: the word is not cached.
  void insert(std::string_view word, const WordKey& key, std::span<const int32_t> ids);

 private:
  static constexpr int kDefaultLog2Slots = 19;  // 16 MB
  static constexpr size_t kWindow = 8;
  static constexpr size_t kLineSlots = 2;
  static constexpr int32_t kAside = -1;
  // Longer words are not cached: texts rarely repeat them.
  static constexpr size_t kMaxBytes = 256;
  static constexpr size_t kMaxAside = size_t{1} << 21;  // of ids, and of bytes

  // The first of a line.
  static size_t first_slot(uint64_t hash, int shift) { return hash >> shift & ~(kLineSlots - 1); }
  void clear(int log2_slots);
  // The slot for a new word: a free one, or that of a word to evict.
  Slot& slot_for(const WordKey& key);
  bool may_grow() const;
  void grow();

  int most_log2_slots_;
  int shift_ = 0;  // of a 64-bit hash, to a slot
  size_t num_words_ = 0;
  size_t next_victim_ = 0;
  CacheLineVector<Slot> slots_;  // kWindow more than the range of the hash
  std::vector<int32_t> aside_ids_;
  std::string aside_bytes_;
};

// A batch of words to look up in a WordCache, in order. The table is larger than a core's caches; a
// batch prefetches the cache lines of all its words, so that their latencies overlap.
class WordBatch {
 public:
  explicit WordBatch(WordCache& cache) : cache_(cache) {}

  // Appends the ids of the words of `text`: cut(emit) calls emit(word) for each, in order.
  // encode(word, ids) computes the ids of an uncached word into an empty `ids`. REQUIRES: the words
  // are in `text`.
  template <class Encode, class Cut>
  void append(std::string_view text, std::vector<int32_t>& ids, const Encode& encode,
              const Cut& cut) {
    cut(emit_for(text, ids, encode));
    drain(ids, encode);
  }
  // The emit object, for texts that share a batch; call drain() after the last. It takes the words
  // of a block in one call, see emit_words().
  template <class Encode>
  auto emit_for(std::string_view text, std::vector<int32_t>& ids, const Encode& encode) {
    return make_emit(text, [this, &ids, &encode] { drain(ids, encode); });
  }
  // As append(), but calls take(word, ids) for each word.
  template <class Encode, class Take, class Cut>
  void visit(std::string_view text, const Encode& encode, const Take& take, const Cut& cut) {
    const auto pass_on = [&] { drain_into(encode, take); };
    cut(make_emit(text, pass_on));
    pass_on();
  }

  bool is_full() const { return size_ > kMaxWords - AsciiBlock::kBytes; }
  // REQUIRES: not full; the word is not empty, at least `readable` bytes from word.data() on may be
  // read until drain().
  void add(std::string_view word, int64_t readable) {
    words_[size_++] = {word.data(), static_cast<int64_t>(word.size()), readable};
  }
  // Appends the ids of all words and empties the batch.
  template <class Encode>
  void drain(std::vector<int32_t>& ids, const Encode& encode) {
    constexpr size_t kInline = WordCache::kMaxInlineIds;
    // Usually enough room for words with more ids, too.
    std::array<int32_t, kMaxWords * kInline + 256> known_ids;
    size_t used = 0;
    const size_t count = look_ahead();
    WordCache::Reader reader(cache_);
    for (size_t i = 0; i < count; ++i) {
      const Look& look = looks_[i];
      if (const WordCache::Slot* const known = reader.find_inline(look.key, look.hash)) {
        std::memcpy(known_ids.data() + used, known->ids.data(), kInline * sizeof(int32_t));
        used += static_cast<size_t>(known->num_ids);
        continue;
      }
      const std::span<const int32_t> rare = ids_of(i, encode);
      if (used + rare.size() + (count - i) * kInline > known_ids.size()) {
        ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
        ids.insert(ids.end(), rare.begin(), rare.end());
        used = 0;
      } else {
        std::copy(rare.begin(), rare.end(), known_ids.begin() + used);
        used += rare.size();
      }
      reader = WordCache::Reader(cache_);
    }
    ids.insert(ids.end(), known_ids.begin(), known_ids.begin() + used);
  }

 private:
  static constexpr size_t kMaxWords = 192;

  struct Word {
    const char* data;
    int64_t size;
    int64_t readable;

    std::string_view text() const { return {data, static_cast<size_t>(size)}; }
  };
  struct Look {
    WordKey key;
    uint64_t hash;
  };

  // Adds words to a batch.
  template <class Drain>
  struct Emit {
    WordBatch& batch;
    const char* end;  // of the text
    Drain drain;

    void operator()(std::string_view word) const {
      batch.add(word, end - word.data());
      if (batch.is_full()) drain();
    }
    void until(const char*& begin, const char* block, uint64_t ends) const {
      batch.add_until(begin, block, ends, end);
      if (batch.is_full()) drain();
    }
  };

  template <class Drain>
  Emit<Drain> make_emit(std::string_view text, Drain drain_all) {
    return {*this, text.data() + text.size(), drain_all};
  }
  void add_until(const char*& begin, const char* block, uint64_t ends, const char* text_end) {
    const auto count = static_cast<size_t>(std::popcount(ends));
    Word* const words = words_.data() + size_;
    const char* word = begin;
    // Always eight, of which some are unused: their number is unpredictable.
    for (size_t done = 0; done < count; done += 8) {
#pragma GCC unroll 8
      for (size_t i = done; i < done + 8; ++i) {
        const char* const word_end = block + std::countr_zero(ends);
        words[i] = {word, word_end - word, text_end - word};
        word = word_end;
        ends &= ends - 1;
      }
    }
    size_ += count;
    begin = words_[size_ - 1].data + words_[size_ - 1].size;
  }
  // Prefetches the lines of all words, and returns their number. Empties the batch, even if
  // encoding a word then fails.
  size_t look_ahead() {
    const size_t count = std::exchange(size_, 0);
    const WordCache::Reader reader(cache_);
    for (size_t i = 0; i < count; ++i) {
      const WordKey key = WordKey::of(words_[i].text(), words_[i].readable);
      const uint64_t hash = key.hash();
      reader.prefetch(hash);
      looks_[i] = {key, hash};
    }
    return count;
  }
  template <class Encode>
  std::span<const int32_t> ids_of(size_t i, const Encode& encode) {
    const std::string_view word = words_[i].text();
    std::span<const int32_t> known;
    if (cache_.find(word, looks_[i].key, known)) return known;
    fresh_.clear();
    encode(word, fresh_);
    cache_.insert(word, looks_[i].key, fresh_);
    return fresh_;
  }
  template <class Encode, class Take>
  void drain_into(const Encode& encode, const Take& take) {
    const size_t count = look_ahead();
    for (size_t i = 0; i < count; ++i) take(words_[i].text(), ids_of(i, encode));
  }

  WordCache& cache_;
  std::array<Word, kMaxWords + 8> words_;  // 8 unused ones at the end
  std::array<Look, kMaxWords> looks_;
  size_t size_ = 0;
  std::vector<int32_t> fresh_;
};

}  // namespace megatron
