#pragma once

#include "megatron/kernels/attention_dropout_parts.h"
#include "megatron/kernels/cuda/attention_softmax.cuh"
#include "megatron/kernels/cuda/barrier.cuh"
#include "megatron/kernels/cuda/pipeline_state.cuh"
#include "megatron/kernels/cuda/wgmma.cuh"

// Tile shape and shared-memory ring of the warpgroup forward pass (wgmma_forward_kernel.cuh): a
// producer warp fills the ring with tiles of keys and values.
namespace megatron::kernels::cuda {

// Tile shape for heads of 64 or 128 channels. Timings are for 16 x 1024 tokens with 16 heads of 64
// channels and 8 x 2048 tokens with 16 heads of 128 channels, causal, on an H200.
template <int kChannels_>
struct WgmmaForwardShape {
  static_assert(kChannels_ == 64 || kChannels_ == 128);
  static constexpr int kChannels = kChannels_;
  static constexpr bool kIsWide = kChannels == 128;
  // Two blocks of two groups take 143 us for documents; one of three 171, one of four 149. Heads of
  // 128 channels leave registers for three groups.
  static constexpr int kBlocks = kIsWide ? 1 : 2;
  static constexpr int kGroups = kIsWide ? 3 : 2;
  // Intra-warpgroup pipelining (alg. 2): a group starts the products with the next keys before the
  // softmax of the current ones. With one block: 311 us for documents with two stages, 333 without;
  // four stages take 307. With two blocks the registers do not suffice.
  static constexpr bool kStartsAhead = kIsWide;
  static constexpr int kKeys = 64;                     // of a tile
  static constexpr int kStages = kIsWide ? 4 : 2;      // ring stages
  static constexpr int kQueries = kGroups * 64;        // of a block
  static constexpr int kUnits = 1;                     // units of 16 queries of a warp
  static constexpr int kKeyTiles = kKeys / 8;          // columns of a product
  static constexpr int kChannelTiles = kChannels / 8;  // the same
  static constexpr int kSteps = kChannels / kUnit;     // of a product over channels
  static constexpr int kKeySteps = kKeys / kUnit;      // of a product over keys

  // The producer warpgroup gives its registers to the consumers.
  static constexpr int kBlock = (kGroups + 1) * kWarpgroup;
  static constexpr int kRegisters = kIsWide ? 160 : 104;
  static constexpr int kCopyRegisters = 32;
  static_assert(kGroups * kRegisters + kCopyRegisters <=
                65536 / (kBlocks * kBlock) / 8 * 8 * (kGroups + 1));

  // In bytes. The tiles of 64 channels of a matrix lie one after the other.
  static constexpr int kColumns = kChannels / kTileColumns;
  static constexpr int kQueryTile = kQueries * kTileRowBytes;
  static constexpr int kKeyTile = kKeys * kTileRowBytes;
  static constexpr int kStage = kColumns * kKeyTile;
  static constexpr int kDropoutColumns = kKeys / 4;  // dropout columns of a key tile
  static constexpr int kBytes = kTileAlignment + kColumns * kQueryTile + 2 * kStages * kStage +
                                kStages * kDropoutColumns * static_cast<int>(sizeof(DropoutColumn));
  static_assert(kKeys % kDropoutKeys == 0 && kDropoutColumns <= kWarp);
};

// A block's work tile: a query tile of one head of one sample. Concurrent blocks cover few pairs of
// sample and head, so that their keys and values stay in the L2 cache. The last query tiles come
// first, because they are the longest under a causal mask.
struct QueryWorkTile {
  static constexpr int kPairsAtOnce = 32;  // with 8 or 16 it takes 1 to 4 % longer
  int pair, batch, head, tile;

  __device__ QueryWorkTile(const Problem& p, int block, int blocks) {
    const int pairs = static_cast<int>(p.b) * p.heads;
    const int tiles = blocks / pairs;
    const int first = block / (kPairsAtOnce * tiles) * kPairsAtOnce;
    const int count = min(kPairsAtOnce, pairs - first);
    const int rest = block % (kPairsAtOnce * tiles);
    tile = tiles - 1 - rest / count;
    pair = first + rest % count;
    batch = pair / p.heads;
    head = pair % p.heads;
  }
};

struct ForwardMaps {
  CUtensorMap q, k, v;
};
// Heads per group of each view, for TMA coordinates.
struct ForwardGroups {
  int q, k, v;
};

// Shared-memory addresses of a block's barriers: one for its queries, and for each stage a full and
// an empty barrier of the keys and of the values.
template <class Shape>
struct ForwardBarriers {
  static constexpr int kCount = 1 + 4 * Shape::kStages;
  static constexpr int kReaders = Shape::kGroups * 4;  // warps
  uint32_t first;
  __device__ uint32_t q() const { return first; }
  __device__ uint32_t k_full(int stage) const { return at(0, stage); }
  __device__ uint32_t k_empty(int stage) const { return at(1, stage); }
  __device__ uint32_t v_full(int stage) const { return at(2, stage); }
  __device__ uint32_t v_empty(int stage) const { return at(3, stage); }

  // One thread calls it before any thread uses a barrier.
  __device__ void init() const {
    barrier::init(q(), 1);
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier::init(k_full(stage), 1);
      barrier::init(v_full(stage), 1);
      barrier::init(k_empty(stage), kReaders);
      barrier::init(v_empty(stage), kReaders);
    }
    barrier::make_visible();
  }

 private:
  __device__ uint32_t at(int kind, int stage) const {
    return first + static_cast<uint32_t>(8 * (1 + kind * Shape::kStages + stage));
  }
};

// Shared-memory addresses of a block's tiles.
template <class Shape>
struct ForwardTiles {
  uint32_t q, keys, values;
  DropoutColumn* columns;  // [kStages, kDropoutColumns]

  __device__ explicit ForwardTiles(unsigned char* memory) {
    constexpr auto kAlignment = static_cast<uint32_t>(kTileAlignment);
    const uint32_t begin = shared_address(memory);
    q = (begin + kAlignment - 1) / kAlignment * kAlignment;
    keys = q + Shape::kColumns * Shape::kQueryTile;
    values = keys + Shape::kStages * Shape::kStage;
    columns = reinterpret_cast<DropoutColumn*>(memory +
                                               (values + Shape::kStages * Shape::kStage - begin));
  }
  __device__ uint32_t keys_of(int stage) const { return keys + of_stage(stage); }
  __device__ uint32_t values_of(int stage) const { return values + of_stage(stage); }
  __device__ DropoutColumn* columns_of(int stage) const {
    return columns + stage * Shape::kDropoutColumns;
  }

 private:
  __device__ static uint32_t of_stage(int stage) {
    return static_cast<uint32_t>(stage * Shape::kStage);
  }
};

// Producer loop of one warp: fills the ring with the block's tiles of keys and values, and with
// dropout's random words of the keys.
template <class Shape, bool kHasDropout>
__device__ __forceinline__ void fill_forward_ring(
    const ForwardMaps& maps, const ForwardGroups& groups, const ForwardBarriers<Shape>& barriers,
    const ForwardTiles<Shape>& tiles, const KeyTileRange& range, const QueryWorkTile& work,
    int first_query, const Problem& p, const LaneCoordinate& at) {
  const int key_head = work.head / (p.heads / p.groups);
  const auto copy = [&](uint32_t to, const CUtensorMap& map, uint32_t barrier, int bytes, int row,
                        int head, int heads_per_group) {
    if (at.lane != 0) return;
    barrier::arrive_and_expect(barrier, static_cast<uint32_t>(bytes * Shape::kColumns));
    for (int i = 0; i < Shape::kColumns; ++i) {
      copy_tile(to + static_cast<uint32_t>(i * bytes), map, barrier, i * kTileColumns, row,
                head % heads_per_group, head / heads_per_group, work.batch);
    }
  };
  copy(tiles.q, maps.q, barriers.q(), Shape::kQueryTile, first_query, work.head, groups.q);
  PipelineState<Shape::kStages> state;
  for (int i = range.first; i < range.last; ++i) {
    const int stage = state.stage;
    const int key = i * Shape::kKeys;
    barrier::wait(barriers.k_empty(stage), state.parity ^ 1);
    if constexpr (kHasDropout) {
      if (at.lane < Shape::kDropoutColumns) {
        const int key_group = p.key_offset + key + at.lane / 8 * kDropoutKeys;
        tiles.columns_of(stage)[at.lane] =
            dropout_column_words(static_cast<uint32_t>(key_group / kDropoutKeys * 8 + at.lane % 8),
                                 p.dropout.sample(work.batch), p.dropout_keys);
      }
    }
    __syncwarp();  // lane 0 publishes the stores; a lane that still waits could miss a phase
    copy(tiles.keys_of(stage), maps.k, barriers.k_full(stage), Shape::kKeyTile, key, key_head,
         groups.k);
    barrier::wait(barriers.v_empty(stage), state.parity ^ 1);
    copy(tiles.values_of(stage), maps.v, barriers.v_full(stage), Shape::kKeyTile, key, key_head,
         groups.v);
    state.advance();
  }
}

}  // namespace megatron::kernels::cuda
