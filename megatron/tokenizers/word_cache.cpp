#include "megatron/tokenizers/word_cache.h"

namespace megatron {

WordCache::WordCache(int log2_sets) : shift_(64 - log2_sets), sets_(size_t{1} << log2_sets) {}

int WordCache::log2_sets_for(size_t text_bytes, int most) {
  return std::clamp(static_cast<int>(std::bit_width(text_bytes / 32)), 1, most);
}

void WordCache::insert_short(const ShortKey& key, std::span<const int32_t> ids) {
  Set& set = sets_[set_of(key)];
  set.words[1] = set.words[0];  // the older of the two is forgotten
  ShortWord& word = set.words[0];
  word.key = key;
  word.num_ids = static_cast<int32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), word.ids.begin());
}

bool WordCache::append_known(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() <= kMaxShortBytes) {
    const auto readable = static_cast<int64_t>(word.size());
    if (const ShortWord* known = find_short(short_key(word, readable))) {
      ids.insert(ids.end(), known->ids.begin(), known->ids.begin() + known->num_ids);
      return true;
    }
  }
  const std::vector<int32_t>* known = find_long(word);
  if (known == nullptr) return false;
  ids.insert(ids.end(), known->begin(), known->end());
  return true;
}

void WordCache::insert(std::string_view word, std::span<const int32_t> ids) {
  if (word.size() <= kMaxShortBytes && ids.size() <= kMaxShortIds) {
    insert_short(short_key(word, static_cast<int64_t>(word.size())), ids);
  } else {
    insert_long(word, ids);
  }
}

const std::vector<int32_t>* WordCache::find_long(std::string_view word) const {
  if (word.size() > kMaxLongBytes) return nullptr;
  const auto found = long_words_.find(word);
  return found == long_words_.end() ? nullptr : &found->second;
}

void WordCache::insert_long(std::string_view word, std::span<const int32_t> ids) {
  if (word.size() > kMaxLongBytes) return;
  if (long_words_.size() >= kMaxLongWords) long_words_.clear();
  long_words_.emplace(std::string(word), std::vector<int32_t>(ids.begin(), ids.end()));
}

}  // namespace megatron
