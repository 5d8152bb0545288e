#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "megatron/device/host_device.h"
#include "megatron/kernels/decode_text.h"

// Partition of the kernel decode_text over blocks and warps.
namespace megatron::kernels::cuda::text {

inline constexpr int kLanesOfWarp = 32;
// Warp roles of a block: two groups of MMA warps, each for every second slot of the ring, a
// producer warp that copies weights, and an epilogue warp.
inline constexpr int kGroups = 2;
inline constexpr int kGroupWarps = 5;
inline constexpr int kMmaWarps = kGroups * kGroupWarps;
inline constexpr int kMmaThreads = kMmaWarps * kLanesOfWarp;
inline constexpr int kBlockThreads = kMmaThreads + 2 * kLanesOfWarp;

inline constexpr int kHeadRows = 52;      // of logits between two reductions
inline constexpr int kTileRows = 16;      // of a slot, at most
inline constexpr int kMostBytes = 28000;  // of a slot of more than half as many rows
inline constexpr int kMaxColumns = 1024;  // of a slot
inline constexpr int kChunk = 32;         // columns of one tensor-core instruction of a warp
inline constexpr int kAtOnce = 8;         // elements of one poll of a lane
inline constexpr int kMaxRingSlots = 64;
inline constexpr int kMinSlots = 4;  // two for each group
// Initial bytes of weights in flight. If the weights of a layer take much longer than the
// exchanges, memory bandwidth dominates: then more bytes are in flight.
inline constexpr int64_t kInFlightBytes = 60000, kMoreBytes = 90000, kManyBytes = 1 << 20;
inline constexpr int64_t kMostBlocks = 256;
inline constexpr int kMostExperts = 256, kMostChoices = kLanesOfWarp;
inline constexpr int64_t kKeysOfSplit = 256;  // longer heads are split among blocks

// Register budgets of kernel variants: kChunks of a slot for each warp, of which every warp has at
// least kSureChunks; kNormSteps steps of eight elements that a lane norms; kPiecesAtOnce slot-wide
// pieces of a vector that a warp polls together. Slots are narrow if hidden and ffn have a small
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

// Row pitch of a slot in bytes, padded so that eight lanes that load 16 bytes each from two
// adjacent rows have no bank conflicts.
constexpr int row_bytes_of(int columns) { return columns * 2 / 128 * 128 + 64; }

// The experts of the token in a layer, each with its factor.
struct alignas(16) ChosenExperts {
  float logits[kMostExperts];
  int ids[kMostChoices];
  float weights[kMostChoices];
};

// Width of the activated vector: the chosen experts' one after the other.
MG_HOST_DEVICE inline int64_t inner_of(const DecodeTextShape& s) {
  return s.experts > 0 ? s.topk * s.ffn : s.ffn;
}

// Columns of a slot; 0 if no variant fits. Both groups have the same number of slots of a row, and
// a slot is of one expert.
inline int64_t columns_of(const DecodeTextShape& s) {
  const int64_t ffn = std::gcd(2 * s.ffn, inner_of(s));
  const int64_t common = std::gcd(std::gcd(s.hidden, ffn), s.heads * s.d) / kGroups;
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

// Partition of a shape; blocks == 0 if the kernel does not support it.
struct Division {
  int64_t blocks = 0, columns = 0, tile_rows = 0, slot_bytes = 0, slots = 0, in_flight = 0,
          part_rows = 0;
  bool waits_for_memory = false;
  int64_t bytes = 0;  // of shared memory: the slots and what decode_text_kernel lays out after them
};

// Partitions a shape for a number of multiprocessors with `room` bytes of shared memory each.
inline Division division_of(const DecodeTextShape& s, int64_t multiprocessors, int64_t room) {
  const bool has_type = s.dtype == DType::kBFloat16 || s.dtype == DType::kFloat16;
  if (!has_type || (s.d != 64 && s.d != 128) || s.groups == 0) return {};
  if (s.page_tokens <= 0 || (s.page_tokens & (s.page_tokens - 1)) != 0) return {};
  if (s.experts > kMostExperts || s.topk > std::min<int64_t>(s.experts, kMostChoices)) return {};
  if (s.router.num_groups > kLanesOfWarp) return {};
  const int64_t inner = inner_of(s);
  Division division;
  division.columns = columns_of(s);
  // Every block has rows of every matrix: a block that publishes nothing could fall behind.
  division.blocks =
      std::min({multiprocessors, kMostBlocks, s.hidden / 2, inner / 2, s.vocabulary / 2});
  if (division.columns == 0 || s.heads > division.blocks) return {};
  const auto quotient_up = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  const auto most_rows = [&](int64_t all) { return quotient_up(all, division.blocks); };
  const int64_t rows[] = {most_rows((s.heads + 2 * s.groups) * s.d), most_rows(inner),
                          most_rows(s.hidden)};
  const int64_t row_bytes = row_bytes_of(static_cast<int>(division.columns));
  const int64_t most = row_bytes * kTileRows <= kMostBytes ? kTileRows : kTileRows / 2;
  for (const int64_t n : rows) {  // tiles of about equal numbers of rows
    division.tile_rows = std::max(division.tile_rows, quotient_up(n, quotient_up(n, most)));
  }
  division.part_rows =
      std::max({rows[0], rows[1] * (is_gated(s.activation) ? 2 : 1), rows[2], int64_t{kHeadRows}});
  division.part_rows += division.part_rows % 2;  // what follows it is a multiple of 16 bytes
  const int64_t widest = std::max({s.hidden, s.heads * s.d, inner});
  const int64_t after_slots = widest * 2 + (2 * kMmaWarps + 2) * division.part_rows * 4 +
                              s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer)) +
                              (s.experts > 0 ? static_cast<int64_t>(sizeof(ChosenExperts)) : 0);
  const int64_t slot = division.slot_bytes = division.tile_rows * row_bytes;
  division.slots = std::clamp<int64_t>((room - after_slots) / slot, 0, kMaxRingSlots);
  if (division.slots < kMinSlots) return {};
  // Enough to saturate memory; more would delay other accesses.
  const int64_t fc1_rows = rows[1] * (is_gated(s.activation) ? 2 : 1);
  const int64_t layer_bytes =
      2 * ((rows[0] + fc1_rows) * s.hidden + rows[2] * (s.heads * s.d + inner));
  division.waits_for_memory = layer_bytes > kManyBytes;
  const int64_t in_flight = division.waits_for_memory ? kMoreBytes : kInFlightBytes;
  division.in_flight = std::clamp<int64_t>(in_flight / slot, 2, division.slots - 1);
  division.bytes = division.slots * slot + after_slots;
  return division;
}

// Number of blocks that share the keys of a head.
inline int64_t splits_of(const DecodeTextShape& s, int64_t blocks, int64_t max_length) {
  return std::clamp<int64_t>((max_length + kKeysOfSplit - 1) / kKeysOfSplit, 1, blocks / s.heads);
}

}  // namespace megatron::kernels::cuda::text
