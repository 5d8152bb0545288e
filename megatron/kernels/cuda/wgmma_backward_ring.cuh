#pragma once

#include "megatron/kernels/attention_dropout_parts.h"
#include "megatron/kernels/cuda/attention_gradient.cuh"
#include "megatron/kernels/cuda/barrier.cuh"
#include "megatron/kernels/cuda/pipeline_state.cuh"
#include "megatron/kernels/cuda/wgmma.cuh"

// Tile shape, shared-memory ring and warp roles of the warpgroup backward pass
// (wgmma_backward_kernel.cuh): a producer warp fills the ring with query tiles and output
// gradients; another warp serializes the block's additions to dq.
namespace megatron::kernels::cuda {

// Tile shape for heads of 64 or 128 channels.
template <int kChannels_>
struct WgmmaBackwardShape {
  static_assert(kChannels_ == 64 || kChannels_ == 128);
  static constexpr int kChannels = kChannels_;
  static constexpr bool kIsWide = kChannels == 128;
  static constexpr int kGroups = 2;
  static constexpr int kUnits = 1;  // units of 16 keys of a warp
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
  static constexpr int kDiagonals = 1;                 // unused
  static constexpr int kStages = 2;                    // ring stages of query tiles
  static constexpr int kKeyStages = 2;                 // ring stages of key tiles

  // The producer warpgroup gives its registers to the consumers.
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
  static constexpr int kDropoutRows = kTileQueries / 2;  // dropout rows of a query tile
  static constexpr int kBytes = kTileAlignment + 2 * kKeyStages * kKeyStage + 2 * kStages * kStage +
                                kStages * kScoreTile +
                                kStages * (kTileQueries * static_cast<int>(sizeof(float2)) +
                                           kDropoutRows * static_cast<int>(sizeof(DropoutRow)));
  static_assert(kKeys == kBackwardKeys && kTileQueries == kTileColumns && kDropoutRows == kWarp);
};

// A query tile of the block's schedule and its turn in the ordered accumulation of dq.
struct BackwardStep {
  static constexpr int kNoHead = -1;
  int head, tile;  // kNoHead ends the work tile; `tile` is then the block's next ticket
  int unmasked_first;
  int before;  // key tiles that add to dq earlier
  bool is_last;
};

// Number of work tiles of a launch: one for each key tile, group and sample.
struct BackwardWorkTiles {
  int tiles;  // of keys
  int count;
  MG_HOST_DEVICE BackwardWorkTiles(const Problem& p, int keys)
      : tiles((p.sk + keys - 1) / keys), count(static_cast<int>(p.b) * p.groups * tiles) {}
};

struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};
// Heads per group of each view, for TMA coordinates.
struct BackwardGroups {
  int q, k, v, dout;
};

// Shared-memory addresses of a block's barriers.
template <class Shape>
struct BackwardBarriers {
  static constexpr int kCount = 2 + 2 * (Shape::kKeyStages + Shape::kStages);
  uint32_t first;
  __device__ uint32_t turn() const { return first; }       // the block may add to dq
  __device__ uint32_t added() const { return first + 8; }  // all warps have added
  __device__ uint32_t keys_full(int stage) const { return at(stage); }
  __device__ uint32_t keys_empty(int stage) const { return at(Shape::kKeyStages + stage); }
  __device__ uint32_t full(int stage) const { return at(2 * Shape::kKeyStages + stage); }
  // All consumers have read the tiles, and the warp that waits for turns has read the step.
  __device__ uint32_t empty(int stage) const {
    return at(2 * Shape::kKeyStages + Shape::kStages + stage);
  }

  // One thread calls it before any thread uses a barrier.
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

// Shared-memory addresses of a block's tiles.
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
  // [kTileQueries]: see BackwardScratch.
  __device__ float2* statistics(int stage) const {
    return statistics_stages + stage * kTileQueries;
  }
  __device__ DropoutRow* rows(int stage) const { return rows_stages + stage * Shape::kDropoutRows; }

 private:
  __device__ static uint32_t of(int stage, int bytes) {
    return static_cast<uint32_t>(stage * bytes);
  }
};

// Visible key ranges of a sample's query tiles, from the results of backward_statistics_kernel().
// The lanes of a warp cache the ranges of 32 tiles; the whole warp calls it.
class TileVisibility {
 public:
  __device__ TileVisibility(const Problem& p, const BackwardScratch& scratch, int64_t batch,
                            int lane)
      : problem_(p), tiles_(scratch.tiles), lane_(lane) {
    if (p.document_starts != nullptr) first_keys_ = scratch.first_keys + batch * scratch.tiles;
  }

  __device__ __forceinline__ VisibleKeys operator()(int tile) {
    const int query = tile * kTileQueries - queries_before_first(problem_);
    const int last_query = min(query + kTileQueries, problem_.sq) - 1;
    VisibleKeys visible{.first = problem_.window_first(max(query, 0)),
                        .last = problem_.last_key(last_query),
                        .unmasked_first = problem_.window_first(last_query),
                        .unmasked_last = problem_.last_key(max(query, 0))};
    if (first_keys_ == nullptr) return visible;
    if (tile / kWarp != part_) {
      part_ = tile / kWarp;
      own_ = first_keys_[min(part_ * kWarp + lane_, tiles_ - 1)];
    }
    visible.first = __shfl_sync(kFullMask, own_.x, tile % kWarp);
    visible.unmasked_first = __shfl_sync(kFullMask, own_.y, tile % kWarp);
    return visible;
  }

 private:
  const Problem& problem_;
  const int2* first_keys_ = nullptr;  // of the sample; null without documents
  int tiles_, lane_;
  int part_ = -1;  // index of the cached 32 tiles
  int2 own_{};     // the lane's entry
};

// Producer loop of one warp. For each work tile of the block it loads the keys and values, and
// fills the ring with the query tiles that see them. Loads of the next work tile overlap with the
// end of the current one.
template <class Shape, bool kHasDropout>
__device__ __forceinline__ void fill_backward_ring(
    const BackwardMaps& maps, const BackwardGroups& groups, const BackwardBarriers<Shape>& barriers,
    const BackwardTiles<Shape>& tiles, BackwardStep* steps, int ticket,
    const BackwardScratch& scratch, const Problem& p, const LaneCoordinate& at) {
  PipelineState<Shape::kStages> state;
  PipelineState<Shape::kKeyStages> keys_state;
  const BackwardWorkTiles work_tiles(p, Shape::kKeys);
  const int heads_per_group = p.heads / p.groups;
  while (ticket < work_tiles.count) {
    const WorkTile work(p, ticket, work_tiles.tiles);
    const auto copy = [&](uint32_t to, const CUtensorMap& map, uint32_t barrier, int bytes, int row,
                          int head, int heads_of_group) {
      for (int i = 0; i < Shape::kColumns; ++i) {
        copy_tile(to + static_cast<uint32_t>(i * bytes), map, barrier, i * kTileColumns, row,
                  head % heads_of_group, head / heads_of_group, static_cast<int>(work.batch));
      }
    };
    barrier::wait(barriers.keys_empty(keys_state.stage), keys_state.parity ^ 1);
    if (at.lane == 0) {
      const int key = work.tile * Shape::kKeys;
      const uint32_t full = barriers.keys_full(keys_state.stage);
      barrier::arrive_and_expect(full, 2 * Shape::kKeyStage);
      copy(tiles.k(keys_state.stage), maps.k, full, Shape::kKeyTile, key, work.group, groups.k);
      copy(tiles.v(keys_state.stage), maps.v, full, Shape::kKeyTile, key, work.group, groups.v);
    }
    keys_state.advance();
    const int end_head = (work.group + 1) * heads_per_group;
    TileVisibility visible_keys_of(p, scratch, work.batch, at.lane);
    const int query_tiles =
        QueryTileIterator::end_of_tiles(p, scratch.tiles, work.tile, Shape::kKeys);
    for (QueryTileIterator current(end_head - heads_per_group, query_tiles);; state.advance()) {
      const int stage = state.stage;
      current.advance(work, Shape::kKeys, query_tiles, end_head, visible_keys_of);
      if (current.head >= end_head) break;
      const int query = current.tile * kTileQueries - queries_before_first(p);
      // Rows beyond the queries have zero data and statistics, so all their gradients are zero. The
      // loads are in flight while this warp waits.
      float2 statistics[kTileQueries / kWarp] = {};
#pragma unroll
      for (int i = 0; i < kTileQueries / kWarp; ++i) {
        const int own = query + i * kWarp + at.lane;
        if (own < 0 || own >= p.sq) continue;
        statistics[i] = scratch.statistics[(work.batch * p.heads + current.head) * p.sq + own];
      }
      barrier::wait(barriers.empty(stage), state.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kTileQueries / kWarp; ++i) {
        tiles.statistics(stage)[i * kWarp + at.lane] = statistics[i];
      }
      if constexpr (kHasDropout) {
        const DropoutHead dropout(p, work.batch, current.head);
        const int row = (p.first_position + query) / 16 * 8 + at.lane;
        tiles.rows(stage)[at.lane] = dropout_row_words(
            dropout.first_row + static_cast<uint32_t>(row), dropout.sample, p.dropout_keys);
      }
      if (at.lane == 0) {
        steps[stage] = {.head = current.head,
                        .tile = current.tile,
                        .unmasked_first = current.visible.unmasked_first,
                        .before = work.tile - current.key_tiles.first,
                        .is_last = work.tile + 1 == current.key_tiles.last};
      }
      __syncwarp();  // lane 0 publishes the stores of all lanes
      if (at.lane != 0) continue;
      barrier::arrive_and_expect(barriers.full(stage), 2 * Shape::kStage);
      copy(tiles.q(stage), maps.q, barriers.full(stage), Shape::kQueryTile, query, current.head,
           groups.q);
      copy(tiles.dout(stage), maps.dout, barriers.full(stage), Shape::kQueryTile, query,
           current.head, groups.dout);
    }
    if (at.lane == 0) ticket = atomicAdd(scratch.ticket, 1);
    ticket = __shfl_sync(kFullMask, ticket, 0);
    barrier::wait(barriers.empty(state.stage), state.parity ^ 1);
    if (at.lane == 0) {
      steps[state.stage].head = BackwardStep::kNoHead;
      steps[state.stage].tile = ticket;
      barrier::arrive(barriers.full(state.stage));
    }
    __syncwarp();  // a lane that still waits could miss a phase
    state.advance();
  }
}

// Serializes the block's additions to dq, in one thread: waits until the preceding key tile has
// added to the dq tile, and releases it to the next key tile after this block has.
template <class Shape>
__device__ __forceinline__ void wait_for_turns(const BackwardBarriers<Shape>& barriers,
                                               const BackwardStep* steps, int ticket,
                                               const BackwardScratch& scratch, const Problem& p) {
  PipelineState<Shape::kStages> state;
  const BackwardWorkTiles work_tiles(p, Shape::kKeys);
  uint32_t turn_parity = 0;
  while (ticket < work_tiles.count) {
    const WorkTile work(p, ticket, work_tiles.tiles);
    for (;; state.advance()) {
      barrier::wait(barriers.full(state.stage), state.parity);
      const BackwardStep step = steps[state.stage];
      barrier::arrive(barriers.empty(state.stage));
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
    state.advance();
  }
}

}  // namespace megatron::kernels::cuda
