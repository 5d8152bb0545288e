#include "megatron/kernels/cuda/attention_gradient.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/tensor_attention.h"
#include "megatron/kernels/cuda/wgmma_attention.h"

// FlashAttention-2's backward pass (Dao 2023, arXiv:2307.08691, alg. 2) on tensor cores, bit-equal
// in every run. A block has a key tile, whose gradients stay in registers during its pass over the
// queries. A warp computes transposed scores: its 16 kUnits keys are rows, so probabilities and
// score gradients already have the register layout of left operands for the products over queries.
// Only dq, the product over keys, needs the score gradients of all warps, through shared memory.
//
// Deterministic accumulation of dq: key tiles add to a query tile of dq in order, serialized by
// semaphores between blocks. Partial sums are fp32 in scratch memory; the last block writes dq.
// Blocks take work tiles by an atomic ticket, so no block waits for one that starts later. They
// rarely wait, because passes start with the last query tile and the first key tiles are scheduled
// first.
//
// Scores are in base 2, and sums over kept probabilities omit dropout's factor: with D =
// sum of dout * out over channels, dS = factor * P * (kept ? dP : 0  -  D / factor).
namespace megatron::kernels::cuda {
namespace {

// Tile shape: kWarps warps of 16 kUnits keys, each with the scores of kChunk queries at a time,
// heads padded to kChannels, and kBlocks resident blocks on a multiprocessor.
template <int kChannels_, int kUnits_, int kWarps_, int kChunk_, int kBlocks_>
struct BackwardShape {
  static constexpr int kChannels = kChannels_;
  static constexpr int kUnits = kUnits_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kChunk = kChunk_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kBlock = kWarps * kWarp;  // threads
  static constexpr int kWarpKeys = kUnits * kUnit;
  static constexpr int kKeys = kWarps * kWarpKeys;
  static constexpr int kSteps = kChannels / kUnit;                 // of a product over channels
  static constexpr int kChannelTiles = kChannels / 8;              // columns of a product
  static constexpr int kChunkTiles = kChunk / 8;                   // the same
  static constexpr int kChunkSteps = kChunk / kUnit;               // of a product over a chunk
  static constexpr int kDiagonals = 2 * kUnits + kChunkTiles - 1;  // of a warp's scores of a chunk
  static_assert(kKeys == kBackwardKeys);

  // A warp's part of a dq tile: half of the channels of some queries.
  static constexpr int kSumUnits = kTileQueries / kUnit / (kWarps / 2);
  static constexpr int kSumTiles = kChannelTiles / 2;

  template <class T>
  using KeyTile = Rows<T, kKeys, kChannels>;
  template <class T>
  using QueryTile = Rows<T, kTileQueries, kChannels>;
  template <class T>
  using ScoreTile = Rows<T, kKeys, kTileQueries>;  // transposed
  using Window = BiasWindow<kTileQueries, kKeys>;
  static constexpr int kWarpSums = kTileQueries + kWarpKeys;  // of gradients, by distance
  template <class T, bool kIsGeneral>
  static constexpr int kBytes = static_cast<int>(
      (2 * KeyTile<T>::kElements + 4 * QueryTile<T>::kElements + ScoreTile<T>::kElements) *
          sizeof(T) +
      2 * kTileQueries * sizeof(float2) + 16 +
      (kIsGeneral ? (2 * Window::kFloats + kWarps * kWarpSums) * sizeof(float) : 0));
};

// --- Main pass ---

// x += rows of a tile of keys times rows of a chunk of queries, transposed.
template <class T, class Shape>
__device__ __forceinline__ void multiply_rows(Scores<Shape>& x, const T* key_lane,
                                              const T* query_lane) {
  constexpr int kStride = Shape::template KeyTile<T>::kStride;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t a[Shape::kUnits][4];
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      load_matrices(a[u], key_lane + u * kUnit * kStride + step * kUnit);
    }
    add_by_columns<T, kStride>(x, a, query_lane + step * kUnit);
  }
}

// Adds the gradients of a warp's scores of a chunk, which begins at query `begin` of the tile, to
// the warp's sums: element kTileQueries + key - query, counted from the warp's and the tile's first
// ones.
//
// A lane's sum of diagonal D belongs to distance 8 D + row - column (- 1 if odd), so to residue
// (row - column) mod 8 of block D, or of D - 1 if row < column. Lanes of a residue differ in their
// column: they add up in two steps, and each then has the sums of all blocks.
template <class Shape>
__device__ __forceinline__ void add_diagonals(float* sums, const Diagonals<Shape>& diagonals,
                                              int begin, const LaneCoordinate& at) {
  constexpr int kBlocks = Shape::kDiagonals + 1;
  const auto lane_of = [](int row, int column) { return row % 8 * 4 + column / 2; };
  const int odd = lane_of(at.row + 1, at.column);
  const int near = lane_of(at.row - at.column + (at.column ^ 2) + 8, at.column ^ 2);
  const int far = lane_of(at.row - at.column + (at.column ^ 4) + 8, at.column ^ 4);
  float* const own = sums + kTileQueries - Shape::kChunk - begin + (at.row - at.column + 8) % 8;
  __syncwarp();  // the last chunk's sums are added
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const auto of_column = [&](int c) {
      const float same = block > 0 ? diagonals[c][block > 0 ? block - 1 : 0] : 0.0f;
      const float next = block < kBlocks - 1 ? diagonals[c][block < kBlocks - 1 ? block : 0] : 0.0f;
      return at.row >= at.column + c ? same : next;
    };
    float sum = of_column(0) + __shfl_sync(kFullMask, of_column(1), odd);
    sum += __shfl_sync(kFullMask, sum, near);
    sum += __shfl_sync(kFullMask, sum, far);
    if (block % 4 == at.column / 2) own[block * 8] += sum;
  }
}

// sums += left factors times rows of a chunk of queries.
template <class T, class Shape>
__device__ __forceinline__ void add_queries(
    float (&sums)[Shape::kUnits][Shape::kChannelTiles][4],
    const uint32_t (&left)[Shape::kUnits][Shape::kChunkSteps][4], const T* query_lane) {
  constexpr int kStride = Shape::template QueryTile<T>::kStride;
#pragma unroll
  for (int step = 0; step < Shape::kChunkSteps; ++step) {
    uint32_t a[Shape::kUnits][4];
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[u][i] = left[u][step][i];
    }
    add_by_rows<T>(sums, a, query_lane + step * kUnit * kStride);
  }
}

// Adds the bias gradients of all warps for a query tile to the block's row of
// BackwardScratch::bias_sums. No other block adds to the row, and barriers order the additions.
template <class Shape>
__device__ __forceinline__ void add_tile(float* row, const float* sums, const Problem& p,
                                         int tile_query) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries + Shape::kKeys; i += Shape::kBlock) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      const int own = i - warp * Shape::kWarpKeys;
      if (own >= 0 && own < Shape::kWarpSums) sum += sums[warp * Shape::kWarpSums + own];
    }
    const int index = i - kTileQueries - tile_query + p.sq - 1;
    if (index >= 0 && index < p.sq + Shape::kKeys - 1) atomicAdd(row + index, sum);
  }
}

template <class T, class Shape, bool kHasDropout, bool kIsGeneral>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kBlocks)
    tensor_backward_kernel(DeviceHeads<T> dq, DeviceHeads<T> dk, DeviceHeads<T> dv,
                           DeviceHeads<const T> dout, DeviceHeads<const T> q,
                           DeviceHeads<const T> k, DeviceHeads<const T> v, BackwardScratch scratch,
                           Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const LaneCoordinate at;
  using KeyTile = typename Shape::template KeyTile<T>;
  using QueryTile = typename Shape::template QueryTile<T>;
  using ScoreTile = typename Shape::template ScoreTile<T>;
  auto* const k_tile = reinterpret_cast<T*>(memory);
  T* const v_tile = k_tile + KeyTile::kElements;
  T* const q_tiles = v_tile + KeyTile::kElements;
  T* const dout_tiles = q_tiles + 2 * QueryTile::kElements;
  T* const ds_tile = dout_tiles + 2 * QueryTile::kElements;
  auto* const statistics = reinterpret_cast<float2*>(ds_tile + ScoreTile::kElements);
  auto* const own_ticket = reinterpret_cast<int*>(statistics + 2 * kTileQueries);
  using Window = typename Shape::Window;
  auto* const windows = reinterpret_cast<float*>(own_ticket + 4);
  float* const bias_sums = windows + 2 * Window::kFloats;
  float* const warp_sums = bias_sums + at.warp * Shape::kWarpSums;
  const bool has_bias_sums = kIsGeneral && scratch.bias_sums != nullptr;

  if (threadIdx.x == 0) *own_ticket = atomicAdd(scratch.ticket, 1);
  __syncthreads();
  const int tiles = (p.sk + Shape::kKeys - 1) / Shape::kKeys;
  const WorkTile work(p, *own_ticket, tiles);
  const int tile_key = work.tile * Shape::kKeys;
  const int warp_key = tile_key + at.warp * Shape::kWarpKeys;
  static_assert(Shape::kWarpKeys <= kWarp);
  const KeyPaddingBits<1> padding(p, work.batch, warp_key, at.lane);
  const int heads_per_group = p.heads / p.groups;
  const int end_head = (work.group + 1) * heads_per_group;

  const auto copy_queries = [&](const QueryTileIterator& current, int stage) {
    const int query = current.tile * kTileQueries - queries_before_first(p);
    QueryTile::template copy<Shape::kBlock>(q_tiles + stage * QueryTile::kElements,
                                            HeadRows<T>(q, work.batch, current.head, p.sq, p.d),
                                            query);
    QueryTile::template copy<Shape::kBlock>(dout_tiles + stage * QueryTile::kElements,
                                            HeadRows<T>(dout, work.batch, current.head, p.sq, p.d),
                                            query);
    if constexpr (kIsGeneral) {
      Window::template copy<Shape::kBlock>(windows + stage * Window::kFloats, p, current.head,
                                           query, tile_key);
    }
    const int own = query + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kTileQueries) return;
    // Rows beyond the queries have zero data and statistics, so all their gradients are zero.
    const bool is_inside = own >= 0 && own < p.sq;
    const float2* const from = scratch.statistics + (work.batch * p.heads + current.head) * p.sq;
    copy_async_8(statistics + stage * kTileQueries + threadIdx.x, from + (is_inside ? own : 0),
                 is_inside);
  };

  const auto visible_keys_of = [&](int tile) {
    return visible_keys<kTileQueries, kIsGeneral>(
        p, work.batch, tile * kTileQueries - queries_before_first(p), at.lane);
  };
  const int query_tiles =
      QueryTileIterator::end_of_tiles(p, scratch.tiles, work.tile, Shape::kKeys);
  QueryTileIterator current(end_head - heads_per_group, query_tiles);
  current.advance(work, Shape::kKeys, query_tiles, end_head, visible_keys_of);
  KeyTile::template copy<Shape::kBlock>(k_tile, HeadRows<T>(k, work.batch, work.group, p.sk, p.d),
                                        tile_key);
  KeyTile::template copy<Shape::kBlock>(v_tile, HeadRows<T>(v, work.batch, work.group, p.sk, p.d),
                                        tile_key);
  if (current.head < end_head) copy_queries(current, 0);

  float dk_sums[Shape::kUnits][Shape::kChannelTiles][4] = {};
  float dv_sums[Shape::kUnits][Shape::kChannelTiles][4] = {};
  int stage = 0;
  int* to_release = nullptr;
  int released = 0;
  while (current.head < end_head) {
    QueryTileIterator next = current;
    next.advance(work, Shape::kKeys, query_tiles, end_head, visible_keys_of);
    wait_for_copies();
    __syncthreads();  // this tile has arrived; the last one is read, its dq added
    if (threadIdx.x == 0 && to_release != nullptr) store_release(to_release, released);
    if (next.head < end_head) copy_queries(next, stage ^ 1);

    const int tile_query = current.tile * kTileQueries - queries_before_first(p);
    const DropoutHead dropout(p, work.batch, current.head);
    const float slope = p.slope(current.head);
    const T* const q_tile = q_tiles + stage * QueryTile::kElements;
    const T* const dout_tile = dout_tiles + stage * QueryTile::kElements;
    const float* const bias = windows + stage * Window::kFloats + kTileQueries - 1 +
                              at.warp * Shape::kWarpKeys + at.row - at.column;
    if (has_bias_sums) {
      for (int i = at.lane; i < Shape::kWarpSums; i += kWarp) warp_sums[i] = 0;
    }
    T* const ds_lane = ds_tile + (at.warp * Shape::kWarpKeys + at.row) * ScoreTile::kStride;
#pragma unroll 1
    for (int begin = 0; begin < kTileQueries; begin += Shape::kChunk) {
      const int query = tile_query + begin;
      Scores<Shape> x = {};
      uint32_t ds[Shape::kUnits][Shape::kChunkSteps][4] = {};
      const bool has_prefixes = kIsGeneral && p.prefix_ends != nullptr;
      const int last = has_prefixes ? current.visible.last : p.last_key(query + Shape::kChunk - 1);
      if (warp_key < last && warp_key + Shape::kWarpKeys > current.visible.first) {
        const int first_row = at.warp * Shape::kWarpKeys * KeyTile::kStride;
        multiply_rows<T, Shape>(
            x, k_tile + first_row + KeyTile::lane_offset_by_rows(at.lane),
            q_tile + begin * QueryTile::kStride + QueryTile::lane_offset_by_columns(at.lane));
        Scores<Shape> dp = {};
        multiply_rows<T, Shape>(
            dp, v_tile + first_row + KeyTile::lane_offset_by_rows(at.lane),
            dout_tile + begin * QueryTile::kStride + QueryTile::lane_offset_by_columns(at.lane));
        const VisibleKeys chunk{
            .first = 0,
            .last = last,
            .unmasked_first = current.visible.unmasked_first,
            .unmasked_last = has_prefixes ? max(current.visible.unmasked_last, p.last_key(query))
                                          : p.last_key(query)};
        const float factor = bias_and_mask_columns<Shape, kIsGeneral>(
            x, p, chunk, padding, work.batch, slope, bias - begin, query, warp_key, at);
        uint32_t kept[Shape::kUnits][Shape::kChunkSteps][4];
        Diagonals<Shape> diagonals = {};
        differentiate<T, Shape, kHasDropout, kIsGeneral>(
            kept, ds, diagonals, x, dp, factor, statistics + stage * kTileQueries + begin, dropout,
            [&](int step, int c) {
              return dropout.words(p.key_offset + warp_key, at.row,
                                   p.first_position + query + step * kUnit, at.column + c);
            },
            p.key_offset + warp_key, p.logit_cap, at);
        add_queries<T, Shape>(
            dv_sums, kept,
            dout_tile + begin * QueryTile::kStride + QueryTile::lane_offset_by_rows(at.lane));
        add_queries<T, Shape>(
            dk_sums, ds,
            q_tile + begin * QueryTile::kStride + QueryTile::lane_offset_by_rows(at.lane));
        if (has_bias_sums) add_diagonals<Shape>(warp_sums, diagonals, begin, at);
      }
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
        for (int t = 0; t < Shape::kChunkTiles; ++t) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            T* const to = ds_lane + (u * kUnit + h * 8) * ScoreTile::kStride + begin + t * 8;
            *reinterpret_cast<uint32_t*>(to + at.column) = ds[u][t / 2][t % 2 * 2 + h];
          }
        }
      }
    }

    // Acquires the semaphore: waits until the preceding key tile has added to the dq tile.
    const int64_t pair = work.batch * p.heads + current.head;
    const int64_t query_tile = pair * scratch.tiles + current.tile;
    int* const counter = scratch.counters + query_tile;
    const int before = work.tile - current.key_tiles.first;
    const bool is_last = work.tile + 1 == current.key_tiles.last;
    if (threadIdx.x == 0 && before > 0) {
      while (load_acquire(counter) != before) {
      }
    }
    __syncthreads();  // also publishes the score gradients
    if (has_bias_sums) {
      add_tile<Shape>(scratch.bias_sums + (pair * tiles + work.tile) * (p.sq + Shape::kKeys - 1),
                      bias_sums, p, tile_query);
    }
    to_release = is_last ? nullptr : counter;
    released = before + 1;

    constexpr int kUnitsOfSum = Shape::kSumUnits;
    constexpr int kTilesOfSum = Shape::kSumTiles;
    const int sum_query = at.warp / 2 * kUnitsOfSum * kUnit;
    const int sum_channel = at.warp % 2 * kTilesOfSum * 8;
    float4* const partial =
        scratch.sums +
        (query_tile * Shape::kWarps + at.warp) * (kUnitsOfSum * kTilesOfSum * kWarp) + at.lane;
    float sums[kUnitsOfSum][kTilesOfSum][4] = {};
    if (before > 0) {
#pragma unroll
      for (int i = 0; i < kUnitsOfSum * kTilesOfSum; ++i) {
        const float4 four = __ldcg(partial + i * kWarp);
        float(&sum)[4] = sums[i / kTilesOfSum][i % kTilesOfSum];
        sum[0] = four.x;
        sum[1] = four.y;
        sum[2] = four.z;
        sum[3] = four.w;
      }
    }
    const T* const ds_part = ds_tile + sum_query + ScoreTile::lane_offset_by_columns(at.lane);
    const T* const k_part = k_tile + sum_channel + KeyTile::lane_offset_by_rows(at.lane);
    const int steps = (min(Shape::kKeys, current.visible.last - tile_key) + kUnit - 1) / kUnit;
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
      uint32_t a[kUnitsOfSum][4];
#pragma unroll
      for (int u = 0; u < kUnitsOfSum; ++u) {
        load_matrices_transposed(a[u], ds_part + step * kUnit * ScoreTile::kStride + u * kUnit);
      }
      add_by_rows<T>(sums, a, k_part + step * kUnit * KeyTile::kStride);
    }
    if (!is_last) {
#pragma unroll
      for (int i = 0; i < kUnitsOfSum * kTilesOfSum; ++i) {
        const float(&sum)[4] = sums[i / kTilesOfSum][i % kTilesOfSum];
        __stcg(partial + i * kWarp, make_float4(sum[0], sum[1], sum[2], sum[3]));
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnitsOfSum; ++u) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int own = tile_query + sum_query + u * kUnit + at.row + h * 8;
          if (own < 0 || own >= p.sq) continue;
          T* const row = dq.row(work.batch, current.head, own);
          const float factor = p.scale * p.kept;
#pragma unroll
          for (int t = 0; t < kTilesOfSum; ++t) {
            const int c = sum_channel + t * 8 + at.column;
            const float(&four)[4] = sums[u][t];
            store_two(row, c, p.d, four[2 * h] * factor, four[2 * h + 1] * factor);
          }
        }
      }
    }
    stage ^= 1;
    current = next;
  }
  wait_for_copies();  // in case there were no queries
  __syncthreads();
  if (threadIdx.x == 0 && to_release != nullptr) store_release(to_release, released);

  store_keys<T, Shape>(dk, work, p, dk_sums, p.scale * p.kept, warp_key, at);
  store_keys<T, Shape>(dv, work, p, dv_sums, p.kept, warp_key, at);
}

// --- Postprocessing: gradient of the relative bias ---

// One thread for each head and distance: adds the sums over samples and key tiles, in order.
__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(float* drelative_bias, const float* sums, Problem p, int tiles) {
  const int distances = p.sq + p.sk - 1;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= int64_t{p.heads} * distances) return;
  constexpr int kKeys = kBackwardKeys;
  const int64_t head = at / distances;
  const int distance = static_cast<int>(at % distances);
  const int row = p.sq + kKeys - 1;
  float sum = 0;
  for (int64_t batch = 0; batch < p.b; ++batch) {
    const float* const own = sums + (batch * p.heads + head) * tiles * row;
    for (int tile = max(distance - p.sq + 1, 0) / kKeys; tile * kKeys <= distance && tile < tiles;
         ++tile) {
      sum += own[int64_t{tile} * row + distance - tile * kKeys];
    }
  }
  drelative_bias[at] = sum * p.kept;
}

// --- Launching ---

// Calls f.operator()<Shape>() for heads of d channels.
template <class F>
void for_shape(int64_t d, const F& f) {
  if (d <= 64) return f.template operator()<BackwardShape<64, 2, 4, 16, 2>>();
  if (d <= 96) return f.template operator()<BackwardShape<96, 1, 8, 32, 1>>();
  f.template operator()<BackwardShape<128, 1, 8, 32, 1>>();
}

struct Arguments {
  HeadsView dq, dk, dv;
  ConstHeadsView dout, out;
  ConstView lse;
  ConstHeadsView q, k, v;
  bool is_on_warpgroups;
};

template <class T, class Shape, bool kHasDropout, bool kIsGeneral>
void launch(const Arguments& a, const Problem& problem, const BackwardScratch& scratch,
            Stream stream) {
  const int64_t pairs = a.q.b * a.q.heads;
  backward_statistics_kernel<<<static_cast<unsigned>(pairs * scratch.tiles), kThreads, 0,
                               native(stream)>>>(
      heads_on_device<T>(a.dq), heads_on_device<const T>(a.dout), heads_on_device<const T>(a.out),
      a.lse.as<float>(), scratch, problem, Shape::kKeys);
  MG_CUDA(cudaGetLastError());
  if (a.is_on_warpgroups) {
    return wgmma_attention_backward(a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v, scratch, problem,
                                    stream);
  }
  const int64_t blocks = (a.k.s + Shape::kKeys - 1) / Shape::kKeys * a.k.b * a.k.heads;
  if (blocks == 0) return;
  constexpr int kBytes = Shape::template kBytes<T, kIsGeneral>;
  const auto kernel = tensor_backward_kernel<T, Shape, kHasDropout, kIsGeneral>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes, stream.device);
  kernel<<<static_cast<unsigned>(blocks), Shape::kBlock, kBytes, native(stream)>>>(
      heads_on_device<T>(a.dq), heads_on_device<T>(a.dk), heads_on_device<T>(a.dv),
      heads_on_device<const T>(a.dout), heads_on_device<const T>(a.q),
      heads_on_device<const T>(a.k), heads_on_device<const T>(a.v), scratch, problem);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

int tensor_backward_shared_bytes(int64_t d) {
  int bytes = 0;
  for_shape(d, [&]<class Shape>() { bytes = Shape::template kBytes<BFloat16, true>; });
  return bytes;
}

void tensor_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                               ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                               ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                               const AttentionSettings& settings, void* workspace, Stream stream) {
  const bool has_bias_gradient = !drelative_bias.is_null() && drelative_bias.numel() > 0;
  const BackwardBytes bytes(q.b, q.heads, q.s, k.s, q.d, settings.relative_bias.data != nullptr);
  auto* const memory = static_cast<unsigned char*>(workspace);
  const int64_t rows =
      q.s + (settings.dropout.is_active() ? settings.query_offset % kDropoutQueries : 0);
  unsigned char* const after_statistics = memory + bytes.sums + bytes.statistics;
  auto* const bias_sums = reinterpret_cast<float*>(after_statistics + bytes.first_keys);
  auto* const ticket =
      reinterpret_cast<int*>(after_statistics + bytes.first_keys + bytes.bias_sums);
  const BackwardScratch scratch{
      .sums = reinterpret_cast<float4*>(memory),
      .statistics = reinterpret_cast<float2*>(memory + bytes.sums),
      .bias_sums = has_bias_gradient ? bias_sums : nullptr,
      .first_keys = reinterpret_cast<int2*>(after_statistics),
      .ticket = ticket,
      .counters = ticket + 1,
      .tiles = static_cast<int>((rows + kTileQueries - 1) / kTileQueries)};
  if (has_bias_gradient) {
    MG_CUDA(cudaMemsetAsync(bias_sums, 0, static_cast<size_t>(bytes.bias_sums), native(stream)));
  }
  const Arguments arguments{
      dq,  dk,
      dv,  dout,
      out, lse,
      q,   k,
      v,   suits_warpgroups(q, k, settings) && has_warpgroup_attention(stream.device)};
  const Problem problem = problem_of(q, k, settings);
  const bool is_general =
      problem.relative_bias != nullptr || problem.prefix_ends != nullptr || problem.logit_cap > 0;
  const auto with_dropout = [&]<class T, class Shape, bool kHasDropout>() {
    is_general ? launch<T, Shape, kHasDropout, true>(arguments, problem, scratch, stream)
               : launch<T, Shape, kHasDropout, false>(arguments, problem, scratch, stream);
  };
  const auto with_shape = [&]<class T, class Shape>() {
    problem.has_dropout ? with_dropout.template operator()<T, Shape, true>()
                        : with_dropout.template operator()<T, Shape, false>();
  };
  const auto with_type = [&]<class T>() {
    for_shape(q.d, [&]<class Shape>() { with_shape.template operator()<T, Shape>(); });
  };
  if (q.b > 0 && q.dtype == DType::kBFloat16) with_type.template operator()<BFloat16>();
  if (q.b > 0 && q.dtype == DType::kFloat16) with_type.template operator()<Float16>();
  if (!has_bias_gradient) return;
  const int64_t key_tiles = (k.s + kBackwardKeys - 1) / kBackwardKeys;
  const int64_t blocks = (drelative_bias.numel() + kThreads - 1) / kThreads;
  bias_gradient_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
      drelative_bias.as<float>(), bias_sums, problem, static_cast<int>(key_tiles));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
