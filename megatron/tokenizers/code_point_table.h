#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace megatron {

// A value for every code point, as a two-stage table over blocks of 256. Immutable, so thread safe.
template <class Value>
class CodePointTable {
 public:
  // `value_of` is called for each code point.
  template <class F>
  explicit CodePointTable(const F& value_of) {
    std::map<std::array<Value, 256>, uint16_t> known;
    for (char32_t block = 0; block < kNumBlocks; ++block) {
      std::array<Value, 256> cells{};
      for (char32_t i = 0; i < 256; ++i) cells[i] = value_of(block * 256 + i);
      const auto [entry, is_new] = known.emplace(cells, static_cast<uint16_t>(known.size()));
      if (is_new) cells_.insert(cells_.end(), cells.begin(), cells.end());
      blocks_[block] = entry->second;
    }
  }

  // REQUIRES: value <= U+10FFFF.
  Value of(char32_t value) const {
    return cells_[std::size_t{blocks_[value >> 8]} * 256 + (value & 255)];
  }

 private:
  static constexpr char32_t kNumBlocks = 0x110000 / 256;

  std::array<uint16_t, kNumBlocks> blocks_{};
  std::vector<Value> cells_;
};

}  // namespace megatron
