#pragma once

#include "megatron/kernels/attention_dropout_parts.h"
#include "megatron/kernels/cuda/attention_gradient.cuh"
#include "megatron/kernels/cuda/barrier.cuh"
#include "megatron/kernels/cuda/ring_place.cuh"
#include "megatron/kernels/cuda/wgmma.cuh"

// How a block of the backward pass on warpgroups (wgmma_backward_kernel.cuh) is divided, its tiles
// of queries and gradients of outputs in shared memory, which one warp fills, and its turns to add
// to dq, for which another one waits.
namespace megatron::kernels::cuda {

// Divides the work for heads of 64 or 128 channels.
template <int kChannels_>
struct WgmmaBackwardShape {
  static_assert(kChannels_ == 64 || kChannels_ == 128);
  static constexpr int kChannels = kChannels_;
  static constexpr bool kIsWide = kChannels == 128;
  static constexpr int kGroups = 2;
  static constexpr int kUnits = 1;  // of 16 keys, of a warp
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kWarpKeys = kUnits * kUnit;
  static constexpr int kKeys = kWarps * kWarpKeys;
  static constexpr int kKeySteps = kKeys / kUnit;      // of a product over keys
  static constexpr int kChunk = kTileQueries;          // all queries of a tile at once
  static constexpr int kChunkTiles = kChunk / 8;       // columns of a product
  static constexpr int kChunkSteps = kChunk / kUnit;   // of a product over queries
  static constexpr int kChannelTiles = kChannels / 8;  // columns of a product
  static constexpr int kSteps = kChannels / kUnit;     // of a product over channels
  static constexpr int kSumTiles = kChannelTiles / 2;  // of a group's part of dq
  static constexpr int kDiagonals = 1;                 // not used
  static constexpr int kStages = 2;                    // tiles of queries in shared memory
  static constexpr int kKeyStages = 2;                 // tiles of keys, the same

  // The third group gives its registers to the others.
  static constexpr int kConsumers = kGroups * kWarpgroup;  // threads
  static constexpr int kBlock = kConsumers + kWarpgroup;
  static constexpr int kRegisters = kIsWide ? 240 : 232;
  static constexpr int kCopyRegisters = kIsWide ? 24 : 40;
  static_assert(kGroups * kRegisters + kCopyRegisters <= 65536 / kBlock / 8 * 8 * (kGroups + 1));

  // In bytes. The tiles of 64 channels of a matrix lie one after the other.
  static constexpr int kColumns = kChannels / kTileColumns;
  static constexpr int kKeyTile = kKeys * kTileRowBytes;
  static constexpr int kQueryTile = kTileQueries * kTileRowBytes;
  static constexpr int kKeyStage = kColumns * kKeyTile;
  static constexpr int kStage = kColumns * kQueryTile;
  static constexpr int kScoreTile = kKeys * kTileRowBytes;
  static constexpr int kDropoutRows = kTileQueries / 2;  // whose words a tile of queries has
  static constexpr int kBytes = kTileAlignment + 2 * kKeyStages * kKeyStage + 2 * kStages * kStage +
                                kStages * kScoreTile +
                                kStages * (kTileQueries * static_cast<int>(sizeof(float2)) +
                                           kDropoutRows * static_cast<int>(sizeof(DropoutRow)));
  static_assert(kKeys == kBackwardKeys && kTileQueries == kTileColumns && kDropoutRows == kWarp);
};

// A tile of queries that the block visits, and its turn to add to the tile of dq.
struct BackwardStep {
  static constexpr int kNoHead = -1;
  int head, tile;  // no head: the work is done, and `tile` is the ticket of the block's next one
  int whole_first;
  int before;  // tiles of keys that add to dq first
  bool is_last;
};

// All works of a launch: a tile of keys of a group in a sample each.
struct BackwardWorks {
  int tiles;  // of keys
  int count;
  MG_HOST_DEVICE BackwardWorks(const Problem& p, int keys)
      : tiles((p.sk + keys - 1) / keys), count(static_cast<int>(p.b) * p.groups * tiles) {}
};

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};
// How many heads a view's group has, for coordinates of the maps.
struct BackwardGroups {
  int q, k, v, dout;
};

// The barriers of a block, by their addresses.
template <class Shape>
struct BackwardBarriers {
  static constexpr int kCount = 2 + 2 * (Shape::kKeyStages + Shape::kStages);
  uint32_t first;
  __device__ uint32_t turn() const { return first; }       // it is the block's turn to add
  __device__ uint32_t added() const { return first + 8; }  // all warps have added
  __device__ uint32_t keys_full(int stage) const { return at(stage); }
  __device__ uint32_t keys_empty(int stage) const { return at(Shape::kKeyStages + stage); }
  __device__ uint32_t full(int stage) const { return at(2 * Shape::kKeyStages + stage); }
  // All groups have read the tiles, and the warp that waits for turns the step.
  __device__ uint32_t empty(int stage) const {
    return at(2 * Shape::kKeyStages + Shape::kStages + stage);
  }

  // By one thread, before the others use them.
  __device__ void init() const {
    barrier::init(turn(), 1);
    barrier::init(added(), Shape::kWarps);
    for (int stage = 0; stage < Shape::kKeyStages; ++stage) {
      barrier::init(keys_full(stage), 1);
      barrier::init(keys_empty(stage), Shape::kWarps);
    }
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier::init(full(stage), 1);
      barrier::init(empty(stage), Shape::kWarps + 1);
    }
    barrier::make_visible();
  }

 private:
  __device__ uint32_t at(int i) const { return first + 16 + static_cast<uint32_t>(i) * 8; }
};

// The tiles of a block in shared memory, by their addresses.
template <class Shape>
struct BackwardTiles {
  uint32_t k_stages, v_stages, q_stages, dout_stages, ds_stages;
  float2* statistics_stages;
  DropoutRow* rows_stages;

  __device__ explicit BackwardTiles(unsigned char* memory) {
    constexpr auto kAlignment = static_cast<uint32_t>(kTileAlignment);
    const uint32_t begin = shared_address(memory);
    k_stages = (begin + kAlignment - 1) / kAlignment * kAlignment;
    v_stages = k_stages + Shape::kKeyStages * Shape::kKeyStage;
    q_stages = v_stages + Shape::kKeyStages * Shape::kKeyStage;
    dout_stages = q_stages + Shape::kStages * Shape::kStage;
    ds_stages = dout_stages + Shape::kStages * Shape::kStage;
    const uint32_t end = ds_stages + Shape::kStages * Shape::kScoreTile;
    statistics_stages = reinterpret_cast<float2*>(memory + (end - begin));
    rows_stages = reinterpret_cast<DropoutRow*>(statistics_stages + Shape::kStages * kTileQueries);
  }
  __device__ uint32_t k(int stage) const { return k_stages + of(stage, Shape::kKeyStage); }
  __device__ uint32_t v(int stage) const { return v_stages + of(stage, Shape::kKeyStage); }
  __device__ uint32_t q(int stage) const { return q_stages + of(stage, Shape::kStage); }
  __device__ uint32_t dout(int stage) const { return dout_stages + of(stage, Shape::kStage); }
  __device__ uint32_t ds(int stage) const { return ds_stages + of(stage, Shape::kScoreTile); }
  // [kTileQueries]: see Scratch.
  __device__ float2* statistics(int stage) const {
    return statistics_stages + stage * kTileQueries;
  }
  __device__ DropoutRow* rows(int stage) const { return rows_stages + stage * Shape::kDropoutRows; }

 private:
  __device__ static uint32_t of(int stage, int bytes) {
    return static_cast<uint32_t>(stage * bytes);
  }
};

// The keys that tiles of queries of a sample see, as backward_statistics_kernel() found them: those
// of 32 tiles lie in the lanes of a warp, which asks together.
class SeenByTiles {
 public:
  __device__ SeenByTiles(const Problem& p, const Scratch& scratch, int64_t batch, int lane)
      : problem_(p), tiles_(scratch.tiles), lane_(lane) {
    if (p.document_starts != nullptr) first_keys_ = scratch.first_keys + batch * scratch.tiles;
  }

  __device__ __forceinline__ Seen operator()(int tile) {
    const int query = tile * kTileQueries - queries_before_first(problem_);
    Seen seen{.first = 0,
              .last = problem_.last_key(min(query + kTileQueries, problem_.sq) - 1),
              .whole_first = 0,
              .whole_last = problem_.last_key(max(query, 0))};
    if (first_keys_ == nullptr) return seen;
    if (tile / kWarp != part_) {
      part_ = tile / kWarp;
      own_ = first_keys_[min(part_ * kWarp + lane_, tiles_ - 1)];
    }
    seen.first = __shfl_sync(kFullMask, own_.x, tile % kWarp);
    seen.whole_first = __shfl_sync(kFullMask, own_.y, tile % kWarp);
    return seen;
  }

 private:
  const Problem& problem_;
  const int2* first_keys_ = nullptr;  // of the sample; null without documents
  int tiles_, lane_;
  int part_ = -1;  // the 32 tiles
  int2 own_{};     // the lane's
};

// Takes one work after the other, from the block's first on: copies its keys and values, and fills
// the ring with the tiles of queries that see them. While the groups end a work, the next one's
// tiles are on their way. By one warp.
template <class Shape, bool kHasDropout>
__device__ __forceinline__ void fill_backward_ring(
    const BackwardMaps& maps, const BackwardGroups& groups, const BackwardBarriers<Shape>& barriers,
    const BackwardTiles<Shape>& tiles, BackwardStep* steps, int ticket, const Scratch& scratch,
    const Problem& p, const Lane& at) {
  RingPlace<Shape::kStages> place;
  RingPlace<Shape::kKeyStages> keys_place;
  const BackwardWorks works(p, Shape::kKeys);
  const int heads_per_group = p.heads / p.groups;
  while (ticket < works.count) {
    const Work work(p, ticket, works.tiles);
    const auto copy = [&](uint32_t to, const CUtensorMap& map, uint32_t barrier, int bytes, int row,
                          int head, int heads_of_group) {
      for (int i = 0; i < Shape::kColumns; ++i) {
        copy_tile(to + static_cast<uint32_t>(i * bytes), map, barrier, i * kTileColumns, row,
                  head % heads_of_group, head / heads_of_group, static_cast<int>(work.batch));
      }
    };
    barrier::wait(barriers.keys_empty(keys_place.stage), keys_place.parity ^ 1);
    if (at.lane == 0) {
      const int key = work.tile * Shape::kKeys;
      const uint32_t full = barriers.keys_full(keys_place.stage);
      barrier::arrive_and_expect(full, 2 * Shape::kKeyStage);
      copy(tiles.k(keys_place.stage), maps.k, full, Shape::kKeyTile, key, work.group, groups.k);
      copy(tiles.v(keys_place.stage), maps.v, full, Shape::kKeyTile, key, work.group, groups.v);
    }
    keys_place.advance();
    const int end_head = (work.group + 1) * heads_per_group;
    SeenByTiles seen_by_tiles(p, scratch, work.batch, at.lane);
    for (Visit visit(end_head - heads_per_group, scratch.tiles);; place.advance()) {
      const int stage = place.stage;
      visit.advance(work, Shape::kKeys, scratch.tiles, end_head, seen_by_tiles);
      if (visit.head >= end_head) break;
      const int query = visit.tile * kTileQueries - queries_before_first(p);
      // Without a query its row and statistics are zeros, which makes all gradients zero. They are
      // on their way while this warp waits.
      float2 statistics[kTileQueries / kWarp] = {};
#pragma unroll
      for (int i = 0; i < kTileQueries / kWarp; ++i) {
        const int own = query + i * kWarp + at.lane;
        if (own < 0 || own >= p.sq) continue;
        statistics[i] = scratch.statistics[(work.batch * p.heads + visit.head) * p.sq + own];
      }
      barrier::wait(barriers.empty(stage), place.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kTileQueries / kWarp; ++i) {
        tiles.statistics(stage)[i * kWarp + at.lane] = statistics[i];
      }
      if constexpr (kHasDropout) {
        const DropoutHead dropout(p, work.batch, visit.head);
        const int row = (p.first_position + query) / 16 * 8 + at.lane;
        tiles.rows(stage)[at.lane] = dropout_row_words(
            dropout.first_row + static_cast<uint32_t>(row), dropout.sample, p.dropout_keys);
      }
      if (at.lane == 0) {
        steps[stage] = {.head = visit.head,
                        .tile = visit.tile,
                        .whole_first = visit.seen.whole_first,
                        .before = work.tile - visit.adders.first,
                        .is_last = work.tile + 1 == visit.adders.last};
      }
      __syncwarp();  // lane 0 tells of all this
      if (at.lane != 0) continue;
      barrier::arrive_and_expect(barriers.full(stage), 2 * Shape::kStage);
      copy(tiles.q(stage), maps.q, barriers.full(stage), Shape::kQueryTile, query, visit.head,
           groups.q);
      copy(tiles.dout(stage), maps.dout, barriers.full(stage), Shape::kQueryTile, query, visit.head,
           groups.dout);
    }
    if (at.lane == 0) ticket = atomicAdd(scratch.ticket, 1);
    ticket = __shfl_sync(kFullMask, ticket, 0);
    barrier::wait(barriers.empty(place.stage), place.parity ^ 1);
    if (at.lane == 0) {
      steps[place.stage].head = BackwardStep::kNoHead;
      steps[place.stage].tile = ticket;
      barrier::arrive(barriers.full(place.stage));
    }
    __syncwarp();  // a lane that still waits could miss a phase
    place.advance();
  }
}

// Waits until the tile of keys before this one has added to the tile of dq, and tells the next one
// when this one has. By one thread.
template <class Shape>
__device__ __forceinline__ void wait_for_turns(const BackwardBarriers<Shape>& barriers,
                                               const BackwardStep* steps, int ticket,
                                               const Scratch& scratch, const Problem& p) {
  RingPlace<Shape::kStages> place;
  const BackwardWorks works(p, Shape::kKeys);
  uint32_t turn_parity = 0;
  while (ticket < works.count) {
    const Work work(p, ticket, works.tiles);
    for (;; place.advance()) {
      barrier::wait(barriers.full(place.stage), place.parity);
      const BackwardStep step = steps[place.stage];
      barrier::arrive(barriers.empty(place.stage));
      if (step.head == BackwardStep::kNoHead) {
        ticket = step.tile;
        break;
      }
      int* const counter =
          scratch.counters + (work.batch * p.heads + step.head) * scratch.tiles + step.tile;
      while (step.before > 0 && load_acquire(counter) != step.before) {
      }
      barrier::arrive(barriers.turn());
      barrier::wait(barriers.added(), turn_parity);
      turn_parity ^= 1;
      if (!step.is_last) store_release(counter, step.before + 1);
    }
    place.advance();
  }
}

}  // namespace megatron::kernels::cuda
