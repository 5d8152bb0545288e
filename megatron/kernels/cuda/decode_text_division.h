#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "megatron/kernels/decode_text.h"

// How the kernel decode_text divides its work among blocks and warps.
namespace megatron::kernels::cuda::text {

inline constexpr int kLanesOfWarp = 32;
// The warps of a block: two groups that multiply, each every second slot of the ring, one that
// copies weights and one that sends results.
inline constexpr int kGroups = 2;
inline constexpr int kGroupWarps = 5;
inline constexpr int kMultipliers = kGroups * kGroupWarps;
inline constexpr int kMultiplierThreads = kMultipliers * kLanesOfWarp;
inline constexpr int kBlockThreads = kMultiplierThreads + 2 * kLanesOfWarp;

inline constexpr int kHeadRows = 52;      // of logits between two reductions
inline constexpr int kTileRows = 16;      // of a slot, at most
inline constexpr int kMostBytes = 28000;  // of a slot of more than half as many rows
inline constexpr int kMaxColumns = 1024;  // of a slot
inline constexpr int kChunk = 32;         // columns that a warp multiplies at once
inline constexpr int kAtOnce = 8;         // elements that a lane receives at once
inline constexpr int kMostSlots = 64;
inline constexpr int kFewestSlots = 4;  // two for each group
// Bytes that the first call asks for at once. A block whose weights of a layer take much longer
// than its exchanges waits for memory most: it asks for more.
inline constexpr int64_t kUnderWay = 60000, kMoreBytes = 90000, kManyBytes = 1 << 20;
inline constexpr int64_t kMostBlocks = 256;
inline constexpr int64_t kKeysOfSplit = 256;  // a head with more is divided among blocks

// What a kernel has registers for: chunks of a slot that are a warp's, of which each warp has at
// least kSureChunks; steps of eight numbers that a lane norms; pieces of a vector, each as long as
// a slot is wide, that a warp asks for at once. A slot is narrow if hidden and ffn have a small
// common divisor.
struct NarrowSlots {
  static constexpr int kChunks = 2, kSureChunks = 0, kNormSteps = 4, kPiecesAtOnce = 16;
};
struct SomeColumns {
  static constexpr int kChunks = 4, kSureChunks = 2, kNormSteps = 1, kPiecesAtOnce = 4;
};
struct FewColumns {
  static constexpr int kChunks = 5, kSureChunks = 4, kNormSteps = 1, kPiecesAtOnce = 4;
};
struct ManyColumns {
  static constexpr int kChunks = 7, kSureChunks = 5, kNormSteps = 2, kPiecesAtOnce = 4;
};
struct ManyPieces {
  static constexpr int kChunks = 5, kSureChunks = 2, kNormSteps = 3, kPiecesAtOnce = 5;
};
template <class Size>
bool has_room(int64_t columns, int64_t hidden) {
  return columns >= int64_t{Size::kSureChunks} * kGroupWarps * kChunk &&
         columns <= int64_t{Size::kChunks} * kGroupWarps * kChunk &&
         hidden / columns / kGroups * Size::kChunks * (kChunk / kAtOnce) <=
             Size::kNormSteps * kLanesOfWarp;
}

// Bytes of a row of a slot: eight lanes that read 16 bytes each of two neighbouring rows find them
// in different banks.
constexpr int row_bytes_of(int columns) { return columns * 2 / 128 * 128 + 64; }

// Columns of a slot; 0: none do. Each group has as many slots of a row as the other.
inline int64_t columns_of(const DecodeTextShape& s) {
  const int64_t common = std::gcd(std::gcd(s.hidden, s.ffn), s.heads * s.d) / kGroups;
  for (int64_t columns = kMaxColumns; columns > 0; columns -= kChunk) {
    if (common % columns != 0) continue;
    const bool has_kernel =
        has_room<NarrowSlots>(columns, s.hidden) || has_room<SomeColumns>(columns, s.hidden) ||
        has_room<FewColumns>(columns, s.hidden) || has_room<ManyColumns>(columns, s.hidden) ||
        has_room<ManyPieces>(columns, s.hidden);
    return has_kernel ? columns : 0;
  }
  return 0;
}

// No blocks: the kernel cannot compute this shape.
struct Division {
  int64_t blocks = 0, columns = 0, tile_rows = 0, slot_bytes = 0, slots = 0, under_way = 0,
          part_rows = 0;
  bool waits_for_memory = false;
  int64_t bytes = 0;  // of shared memory: the slots and what decode_text_kernel lays out after them
};

// On that many multiprocessors, each of which has `room` bytes of shared memory.
inline Division division_of(const DecodeTextShape& s, int64_t multiprocessors, int64_t room) {
  const bool has_type = s.dtype == DType::kBFloat16 || s.dtype == DType::kFloat16;
  if (!has_type || (s.d != 64 && s.d != 128) || s.groups == 0) return {};
  if (s.page_tokens <= 0 || (s.page_tokens & (s.page_tokens - 1)) != 0) return {};
  Division division;
  division.columns = columns_of(s);
  // Who sends nothing could fall behind: each block has rows of each matrix.
  division.blocks =
      std::min({multiprocessors, kMostBlocks, s.hidden / 2, s.ffn / 2, s.vocabulary / 2});
  if (division.columns == 0 || s.heads > division.blocks) return {};
  const auto quotient_up = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  const auto most_rows = [&](int64_t all) { return quotient_up(all, division.blocks); };
  const int64_t rows[] = {most_rows((s.heads + 2 * s.groups) * s.d), most_rows(s.ffn),
                          most_rows(s.hidden)};
  const int64_t row_bytes = row_bytes_of(static_cast<int>(division.columns));
  const int64_t most = row_bytes * kTileRows <= kMostBytes ? kTileRows : kTileRows / 2;
  for (const int64_t n : rows) {  // tiles of about equal numbers of rows
    division.tile_rows = std::max(division.tile_rows, quotient_up(n, quotient_up(n, most)));
  }
  division.part_rows =
      std::max({rows[0], rows[1] * (is_gated(s.activation) ? 2 : 1), rows[2], int64_t{kHeadRows}});
  division.part_rows += division.part_rows % 2;  // what follows it is a multiple of 16 bytes
  const int64_t widest = std::max({s.hidden, s.heads * s.d, s.ffn});
  const int64_t after_slots = widest * 2 + (2 * kMultipliers + 2) * division.part_rows * 4 +
                              s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer));
  const int64_t slot = division.slot_bytes = division.tile_rows * row_bytes;
  division.slots = std::clamp<int64_t>((room - after_slots) / slot, 0, kMostSlots);
  if (division.slots < kFewestSlots) return {};
  // They keep memory busy; with more, other accesses wait behind them.
  const int64_t fc1_rows = rows[1] * (is_gated(s.activation) ? 2 : 1);
  const int64_t layer_bytes =
      2 * ((rows[0] + fc1_rows) * s.hidden + rows[2] * (s.heads * s.d + s.ffn));
  division.waits_for_memory = layer_bytes > kManyBytes;
  const int64_t under_way = division.waits_for_memory ? kMoreBytes : kUnderWay;
  division.under_way = std::clamp<int64_t>(under_way / slot, 2, division.slots - 1);
  division.bytes = division.slots * slot + after_slots;
  return division;
}

// How many blocks share the keys of a head.
inline int64_t splits_of(const DecodeTextShape& s, int64_t blocks, int64_t max_length) {
  return std::clamp<int64_t>((max_length + kKeysOfSplit - 1) / kKeysOfSplit, 1, blocks / s.heads);
}

}  // namespace megatron::kernels::cuda::text
