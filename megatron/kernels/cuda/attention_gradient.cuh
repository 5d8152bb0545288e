#pragma once

#include "megatron/kernels/cuda/attention_tile.cuh"

// Shared parts of the tensor-core backward kernels of attention: the tile schedule and the
// gradients of a score tile.
namespace megatron::kernels::cuda {

inline constexpr int kTileQueries = kBackwardQueries;

// Pointers into the workspace.
struct BackwardScratch {
  float4* sums;        // partial dq, by query tile, warp, product and lane
  float2* statistics;  // [b, heads, sq]: base-2 log-sum-exp, D / factor
  // [b, heads, key tiles, sq + kKeys - 1]: score gradients, over dropout's factor, summed by key -
  // query + sq - 1 - the tile's first key; null without a bias gradient
  float* bias_sums;
  // [b, tiles]: VisibleKeys::first and unmasked_first of a query tile; written with documents only
  int2* first_keys;
  int* ticket;    // dynamic tile scheduler
  int* counters;  // [b, heads, tiles]: semaphores, the key tiles that have added to dq
  int tiles;      // query tiles of a head
};

// --- Preprocessing: statistics, reset of the semaphores and the scheduler ---

// One block for each query tile; eight lanes share a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_statistics_kernel(DeviceHeads<T> dq, DeviceHeads<const T> dout,
                               DeviceHeads<const T> out, const float* lse, BackwardScratch scratch,
                               Problem p, int keys) {
  const auto block = static_cast<int>(blockIdx.x);
  const int tile = block % scratch.tiles;
  const int64_t pair = block / scratch.tiles;
  const int64_t batch = pair / p.heads;
  const int head = static_cast<int>(pair % p.heads);
  const int first_query = tile * kTileQueries - queries_before_first(p);
  const int warp_lane = static_cast<int>(threadIdx.x) % kWarp;
  const VisibleKeys visible = visible_keys<kTileQueries, true>(p, batch, first_query, warp_lane);
  const KeyTileRange key_tiles(visible, keys);
  const bool has_keys = key_tiles.first < key_tiles.last;
  if (threadIdx.x == 0) {
    scratch.counters[blockIdx.x] = 0;
    if (blockIdx.x == 0) *scratch.ticket = 0;
    if (p.document_starts != nullptr && head == 0) {
      scratch.first_keys[batch * scratch.tiles + tile] =
          make_int2(visible.first, visible.unmasked_first);
    }
  }
  constexpr int kLanes = 8;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int i = static_cast<int>(threadIdx.x) / kLanes; i < kTileQueries; i += kThreads / kLanes) {
    const int query = first_query + i;
    const bool is_inside = query >= 0 && query < p.sq;
    float sum = 0;
    for (int c = lane * kVector; is_inside && c < p.d; c += kLanes * kVector) {
      float x[kVector], y[kVector];
      load(x, dout.row(batch, head, query) + c);
      load(y, out.row(batch, head, query) + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum = fmaf(x[j], y[j], sum);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kFullMask, sum, step);
    if (!is_inside) continue;
    const int64_t at = pair * p.sq + query;
    if (lane == 0) scratch.statistics[at] = make_float2(lse[at] * kLog2E, sum / p.kept);
    if (has_keys) continue;
    T* const row = dq.row(batch, head, query);
    for (int c = lane; c < p.d; c += kLanes) row[c] = from_float<T>(0.0f);
  }
}

// --- Main pass ---

// A work tile of the scheduler: a key tile of one query group in one sample.
struct WorkTile {
  int64_t batch;
  int group, tile;
  static constexpr int kPairsAtOnce = 32;

  // Decodes a ticket: the first key tiles of kPairsAtOnce pairs of sample and group come first,
  // then their second key tiles, and so on.
  __device__ WorkTile(const Problem& p, int ticket, int tiles) {
    const int pairs = static_cast<int>(p.b) * p.groups;
    const int first = ticket / (kPairsAtOnce * tiles) * kPairsAtOnce;
    const int count = min(kPairsAtOnce, pairs - first);
    const int rest = ticket % (kPairsAtOnce * tiles);
    tile = rest / count;
    const int pair = first + rest % count;
    batch = pair / p.groups;
    group = pair % p.groups;
  }
};

// Iterates over the query tiles that see a block's keys: head by head, in descending order.
struct QueryTileIterator {
  int head, tile;
  VisibleKeys visible;
  KeyTileRange key_tiles;

  __device__ QueryTileIterator(int first_head, int tiles)
      : head(first_head), tile(tiles), visible{}, key_tiles(visible, 1) {}
  // One past the last of `tiles` query tiles whose windows may reach key tile `tile` of `keys`.
  static __device__ int end_of_tiles(const Problem& p, int tiles, int tile, int keys) {
    const int end = p.end_query((tile + 1) * keys - 1) + queries_before_first(p);
    return min(tiles, (max(end, 1) + kTileQueries - 1) / kTileQueries);
  }

  // visible_keys_of(tile) returns the VisibleKeys of a query tile.
  template <class VisibleKeysOf>
  __device__ __forceinline__ void advance(const WorkTile& work, int keys, int tiles, int end_head,
                                          VisibleKeysOf& visible_keys_of) {
    do {
      if (--tile < 0) {
        tile = tiles - 1;
        ++head;
      }
      if (head >= end_head) return;
      visible = visible_keys_of(tile);
      key_tiles = KeyTileRange(visible, keys);
    } while (!key_tiles.has(work.tile));
  }
};

// A warp's accumulators of the transposed scores: rows are its keys, columns a chunk of queries.
template <class Shape>
using Scores = float[Shape::kUnits][Shape::kChunkTiles][4];
// A lane's sums of score gradients, by even and odd column and by diagonal of 8 x 8 tiles.
template <class Shape>
using Diagonals = float[2][Shape::kDiagonals];

// Adds position biases to the products q k and masks them; queries are columns. Returns the
// remaining scale to base-2 scores. `bias` points to the bias of the lane's first row and column.
template <class Shape, bool kIsGeneral>
__device__ __forceinline__ float bias_and_mask_columns(Scores<Shape>& x, const Problem& p,
                                                       const VisibleKeys& visible,
                                                       const KeyPaddingBits<1>& padding,
                                                       int64_t batch, float slope,
                                                       const float* bias, int query, int key,
                                                       const LaneCoordinate& at) {
  float factor = p.scale * kLog2E;
  // Columns beyond the queries have no log-sum-exp that bounds their scores.
  bool may_be_large = p.slopes != nullptr || factor <= 0;
  if (kIsGeneral && p.relative_bias != nullptr) {
    may_be_large |= query < 0 || query + Shape::kChunk > p.sq;
    // Scores on a diagonal of tiles share their bias.
#pragma unroll
    for (int i = 0; i < Shape::kDiagonals; ++i) {
      const int diagonal = i + 1 - Shape::kChunkTiles;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float shared = kLog2E * bias[diagonal * 8 - c];
#pragma unroll
        for (int t = 0; t < Shape::kChunkTiles; ++t) {
          const int row = diagonal + t;
          if (row < 0 || row >= 2 * Shape::kUnits) continue;
          float& score = x[row / 2][t][row % 2 * 2 + c];
          score = fmaf(score, factor, shared);
        }
      }
    }
    factor = 1;
  }
  if (kIsGeneral && p.logit_cap > 0) {
    const float inner = p.scale / p.logit_cap;
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
      for (int t = 0; t < Shape::kChunkTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[u][t][i] = capped_score(x[u][t][i] * inner, p.logit_cap * kLog2E);
        }
      }
    }
    factor = 1;
  }
  if (p.slopes != nullptr || factor <= 0) {
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto position =
            static_cast<float>(p.key_offset + key + u * kUnit + at.row + i / 2 * 8);
#pragma unroll
        for (int t = 0; t < Shape::kChunkTiles; ++t) {
          x[u][t][i] = fmaf(x[u][t][i], factor, slope * kLog2E * position);
        }
      }
    }
    factor = 1;
  }
  if (may_be_large || !visible.is_unmasked(key, Shape::kWarpKeys)) {
#pragma unroll
    for (int t = 0; t < Shape::kChunkTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const KeyRange<kIsGeneral> range(p, batch, query + t * 8 + at.column + c);
#pragma unroll
        for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (!range.has(key + u * kUnit + at.row + h * 8)) x[u][t][2 * h + c] = -infinity();
          }
        }
      }
    }
  }
  if (!padding.any()) return factor;
#pragma unroll
  for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!padding.has(0, u * kUnit + at.row + h * 8)) continue;
#pragma unroll
      for (int t = 0; t < Shape::kChunkTiles; ++t) {
        x[u][t][2 * h] = x[u][t][2 * h + 1] = -infinity();
      }
    }
  }
  return factor;
}

// Backward pass of softmax and dropout. From scores and dp computes the kept probabilities p and
// the score gradients ds, rounded as left operands of the products over the chunk's queries. Adds
// ds to `diagonals`. With a cap of scores (kIsGeneral) ds are gradients of the products before it.
// words_of(step, c) returns the random words of the lane's keys and column c (0
// or 1) of the step's 16 queries.
template <class T, class Shape, bool kHasDropout, bool kIsGeneral, class Words>
__device__ __forceinline__ void differentiate(
    uint32_t (&kept)[Shape::kUnits][Shape::kChunkSteps][4],
    uint32_t (&ds)[Shape::kUnits][Shape::kChunkSteps][4], Diagonals<Shape>& diagonals,
    const Scores<Shape>& x, const Scores<Shape>& dp, float factor, const float2* statistics,
    const DropoutHead& dropout, const Words& words_of, int key, float logit_cap,
    const LaneCoordinate& at) {
  const float of_cap = logit_cap > 0 ? 1.0f / (logit_cap * kLog2E) : 0.0f;
#pragma unroll
  for (int t = 0; t < Shape::kChunkTiles; ++t) {
    // Log-sum-exp and D of two adjacent queries.
    const float4 both = *reinterpret_cast<const float4*>(statistics + t * 8 + at.column);
    const float logs[2] = {both.x, both.z};
    const float deltas[2] = {both.y, both.w};
    AttentionWords words[2];
    if constexpr (kHasDropout) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        words[c] = words_of(t / 2, c);
      }
    }
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      float p[4];
      float gradient[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = exp2_fast(fmaf(x[u][t][i], factor, -logs[i % 2]));
        float kept_p = p[i];
        if constexpr (kHasDropout) {
          // Even words belong to the first 16 of 32 keys; a warp of 16 keys is either half.
          constexpr bool kHasBoth = Shape::kUnits == 2;
          const auto even = static_cast<size_t>(t % 2 * 2);
          const bool is_first = kHasBoth ? u == 0 : key % kDropoutKeys == 0;
          const uint32_t word = is_first ? words[i % 2][even] : words[i % 2][even + 1];
          kept_p = dropout.keeps(word, i / 2 != 0) ? p[i] : 0.0f;
          gradient[i] = fmaf(kept_p, dp[u][t][i], -p[i] * deltas[i % 2]);
        } else {
          gradient[i] = p[i] * (dp[u][t][i] - deltas[i % 2]);
        }
        if constexpr (kIsGeneral) {
          if (of_cap > 0) {  // a masked score is -infinity: its gradient is 0
            const float share = fmaxf(x[u][t][i] * of_cap, -1.0f);
            gradient[i] *= fmaf(-share, share, 1.0f);
          }
          diagonals[i % 2][2 * u + i / 2 - t + Shape::kChunkTiles - 1] += gradient[i];
        }
        p[i] = kept_p;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        kept[u][t / 2][t % 2 * 2 + h] = pack_two<T>(p[2 * h], p[2 * h + 1]);
        ds[u][t / 2][t % 2 * 2 + h] = pack_two<T>(gradient[2 * h], gradient[2 * h + 1]);
      }
    }
  }
}

// Writes a warp's rows of dk or dv.
template <class T, class Shape>
__device__ void store_keys(const DeviceHeads<T>& to, const WorkTile& work, const Problem& p,
                           const float (&sums)[Shape::kUnits][Shape::kChannelTiles][4],
                           float factor, int key, const LaneCoordinate& at) {
#pragma unroll
  for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = key + u * kUnit + at.row + h * 8;
      if (own >= p.sk) continue;
      T* const row = to.row(work.batch, work.group, own);
#pragma unroll
      for (int t = 0; t < Shape::kChannelTiles; ++t) {
        const int c = t * 8 + at.column;
        const float(&four)[4] = sums[u][t];
        store_two(row, c, p.d, four[2 * h] * factor, four[2 * h + 1] * factor);
      }
    }
  }
}

}  // namespace megatron::kernels::cuda
