#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Maps strings to indices 0, 1, 2, ... in the order of insertion, in a few blocks of memory: a
// vocabulary loads faster than into a map of nodes. Thread safe for reading once it is filled.
class StringTable {
 public:
  StringTable();

  void reserve(size_t num_strings);
  // The index of a string; inserts it if it is new.
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

  // The slot of the string, or the free slot for it.
  size_t slot_of(std::string_view key, uint64_t hash) const;
  void grow(size_t num_slots);

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::string bytes_;
};

}  // namespace megatron
