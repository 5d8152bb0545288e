#include "megatron/tokenizers/string_table.h"

#include <bit>
#include <functional>

namespace megatron {
namespace {

constexpr size_t kFirstSlots = 64;

}  // namespace

StringTable::StringTable() : slots_(kFirstSlots) {}

void StringTable::reserve(size_t num_strings) {
  entries_.reserve(num_strings);
  if (num_strings * 2 > slots_.size()) grow(std::bit_ceil(num_strings * 2));
}

size_t StringTable::slot_of(std::string_view key, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = (hash >> 32) & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.place < 0) return i;
    if (slot.hash != static_cast<uint32_t>(hash)) continue;
    if (this->key(static_cast<size_t>(slot.place)) == key) return i;
  }
}

void StringTable::grow(size_t num_slots) {
  slots_.assign(num_slots, Slot());
  for (size_t place = 0; place < entries_.size(); ++place) {
    const uint64_t hash = entries_[place].hash;
    slots_[slot_of(key(place), hash)] = {static_cast<uint32_t>(hash), static_cast<int32_t>(place)};
  }
}

size_t StringTable::insert(std::string_view key) {
  const uint64_t hash = std::hash<std::string_view>()(key);
  size_t slot = slot_of(key, hash);
  if (slots_[slot].place >= 0) return static_cast<size_t>(slots_[slot].place);
  if ((entries_.size() + 1) * 2 > slots_.size()) {
    grow(slots_.size() * 2);
    slot = slot_of(key, hash);
  }
  slots_[slot] = {static_cast<uint32_t>(hash), static_cast<int32_t>(entries_.size())};
  entries_.push_back({hash, bytes_.size(), key.size()});
  bytes_ += key;
  return entries_.size() - 1;
}

std::optional<size_t> StringTable::find(std::string_view key) const {
  const Slot& slot = slots_[slot_of(key, std::hash<std::string_view>()(key))];
  if (slot.place < 0) return std::nullopt;
  return static_cast<size_t>(slot.place);
}

}  // namespace megatron
