#include "megatron/tokenizers/word_cache.h"

#include <algorithm>
#include <functional>

namespace megatron {
namespace {

constexpr int kFirstLog2Slots = 6;

}  // namespace

WordKey WordKey::of_long(std::string_view word) {
  return {std::hash<std::string_view>()(word), word.size() | (kLong << 56)};
}

WordKey WordKey::of_copied(std::string_view word) {
  std::array<char, 16> copy{};
  std::copy(word.begin(), word.end(), copy.begin());
  return of_short({copy.data(), word.size()}, 16);
}

WordCache::WordCache(int log2_slots) : most_log2_slots_(log2_slots) { clear(kFirstLog2Slots); }

void WordCache::clear(int log2_slots) {
  shift_ = 64 - log2_slots;
  slots_.assign((size_t{1} << log2_slots) + kWindow, Slot());
  num_words_ = 0;
  aside_ids_.clear();
  aside_bytes_.clear();
}

bool WordCache::find(std::string_view word, const WordKey& key,
                     std::span<const int32_t>& ids) const {
  const size_t first = first_slot(key.hash(), shift_);
  for (size_t i = first; i < first + kWindow && !slots_[i].is_free(); ++i) {
    const Slot& known = slots_[i];
    if (!(known.key == key)) continue;
    if (known.num_ids != kAside) {
      ids = {known.ids.data(), static_cast<size_t>(known.num_ids)};
      return true;
    }
    const auto bytes_at = static_cast<size_t>(known.ids[2]);
    if (key.is_long() && aside_bytes_.compare(bytes_at, word.size(), word) != 0) continue;
    ids = {aside_ids_.data() + known.ids[0], static_cast<size_t>(known.ids[1])};
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view word, const WordKey& key, std::span<const int32_t> ids) {
  if (word.size() > kMaxBytes) return;
  if (aside_ids_.size() > kMaxAside || aside_bytes_.size() > kMaxAside) clear(64 - shift_);
  if (num_words_ * 2 > slots_.size() && may_grow()) grow();
  Slot* const slot = &slot_for(key);
  slot->key = key;
  if (!key.is_long() && ids.size() <= kMaxInlineIds) {
    slot->num_ids = static_cast<int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), slot->ids.begin());
    return;
  }
  slot->num_ids = kAside;
  slot->ids = {static_cast<int32_t>(aside_ids_.size()), static_cast<int32_t>(ids.size()),
               static_cast<int32_t>(aside_bytes_.size())};
  aside_ids_.insert(aside_ids_.end(), ids.begin(), ids.end());
  if (key.is_long()) aside_bytes_ += word;
}

WordCache::Slot& WordCache::slot_for(const WordKey& key) {
  const size_t first = first_slot(key.hash(), shift_);
  for (size_t i = first; i < first + kWindow; ++i) {
    if (!slots_[i].is_free()) continue;
    ++num_words_;
    return slots_[i];
  }
  return slots_[first + next_victim_++ % kWindow];
}

bool WordCache::may_grow() const { return 64 - shift_ < most_log2_slots_; }

void WordCache::grow() {
  const auto old = std::move(slots_);
  --shift_;
  slots_.assign((size_t{1} << (64 - shift_)) + kWindow, Slot());
  num_words_ = 0;
  for (const Slot& word : old) {
    if (!word.is_free()) slot_for(word.key) = word;
  }
}

}  // namespace megatron
