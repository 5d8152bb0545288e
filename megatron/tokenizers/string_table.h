#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Strings and their places 0, 1, 2, ..., in the order in which they came, in a few pieces of
// memory: a vocabulary is read faster than into nodes. Filled first, then read by any number of
// threads.
class StringTable {
 public:
  StringTable();

  void reserve(size_t num_strings);
  // The place of a string, a new one if it is not there.
  size_t insert(std::string_view key);
  std::optional<size_t> find(std::string_view key) const;
  size_t size() const { return entries_.size(); }
  std::string_view key(size_t place) const {
    return std::string_view(bytes_).substr(entries_[place].begin, entries_[place].size);
  }

 private:
  struct Entry {
    uint64_t hash;
    size_t begin;  // in bytes_
    size_t size;
  };
  // In an open table with linear probing.
  struct Slot {
    uint32_t hash = 0;  // the lower half
    int32_t place = -1;
  };

  // The slot of the string, or the free one where it belongs.
  size_t slot_of(std::string_view key, uint64_t hash) const;
  void grow(size_t num_slots);

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::string bytes_;
};

}  // namespace megatron
