#include "megatron/kernels/cuda/math_attention.h"

#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/capability.h"

// Scores are computed in tiles of 32 x 32. A block has eight warps, each with four rows of the tile
// (queries in the forward pass and for dq, keys for dk and dv); its lanes have the tile's columns.
// Sums over columns are warp shuffles; products with a tile of values, keys or queries distribute
// the channels over the lanes.
//
// The backward pass has four tiles in shared memory. On GPUs with too little shared memory the two
// streamed tiles share one buffer in turn: they are loaded more often, with the same results.
namespace megatron::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kRows = 4;  // of a warp
static_assert(kTile / kRows * kWarp == kThreads);

// A block's work tile: kTile queries, a multiple of 32. Longest first: under a causal mask the last
// tiles see the most keys.
template <int kTile>
struct QueryBlock {
  int64_t batch, query;
  int head, group;

  __device__ explicit QueryBlock(const Problem& p) {
    const int64_t tiles = (p.sq + kTile - 1) / kTile;
    const int64_t pair = blockIdx.x % (p.b * p.heads);
    batch = pair / p.heads;
    head = static_cast<int>(pair % p.heads);
    group = head / (p.heads / p.groups);
    query = (tiles - 1 - blockIdx.x / (p.b * p.heads)) * kTile;
  }
  // Key tiles with visible keys begin in [first_tile, last_key).
  __device__ int64_t first_tile(const Problem& p, int lane) const {
    int64_t first = p.sk;
#pragma unroll
    for (int i = 0; i < kTile; i += kWarp) {
      const int64_t own = query + i + lane;
      if (own < p.sq) first = smaller(first, p.first_key(batch, own));
    }
    return warp_min(first) / kTile * kTile;
  }
  __device__ int64_t last_key(const Problem& p, int lane) const {
    if (p.prefix_ends == nullptr) return p.last_key(smaller(query + kTile, p.sq) - 1);
    int64_t last = 0;
#pragma unroll
    for (int i = 0; i < kTile; i += kWarp) {
      const int64_t own = query + i + lane;
      if (own < p.sq) last = larger(last, p.last_key(batch, own));
    }
    return warp_max(last);
  }
};

// A tile of rows in shared memory, as fp32. The padding of four floats spreads the rows over banks.
template <int kChannels>
struct Tile {
  static constexpr int kStride = kChannels + 4;
  static constexpr int kFloats = kTile * kStride;
  float* data;

  // Rows [first, first + kTile) of a head times alpha; zero beyond `rows` and beyond d.
  template <class T>
  __device__ void load(const DeviceHeads<const T>& x, int64_t batch, int head, int64_t first,
                       int64_t rows, int d, float alpha) const {
    if (x.is_wide) {
      load_by<4>(x, batch, head, first, rows, d, alpha);
    } else {
      load_by<1>(x, batch, head, first, rows, d, alpha);
    }
  }

  template <int N, class T>
  __device__ void load_by(const DeviceHeads<const T>& x, int64_t batch, int head, int64_t first,
                          int64_t rows, int d, float alpha) const {
    constexpr int kPerRow = kChannels / N;
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPerRow; i += kThreads) {
      const int row = i / kPerRow;
      const int c = i % kPerRow * N;
      float values[N] = {};
      if (first + row < rows && c < d) {
        cuda::load(values, x.row(batch, head, first + row) + c);
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] *= alpha;
      }
      cuda::store(data + row * kStride + c, values);
    }
  }
  __device__ const float* row(int i) const { return data + i * kStride; }
};

// products[r] = a row (first_row + r) . b row (lane): a warp's part of a tile of scores.
template <int kChannels>
__device__ void row_products(float (&products)[kRows], const Tile<kChannels>& a, int first_row,
                             const Tile<kChannels>& b, int lane) {
  const auto* const column = reinterpret_cast<const float4*>(b.row(lane));
#pragma unroll
  for (int r = 0; r < kRows; ++r) products[r] = 0;
#pragma unroll 4
  for (int c = 0; c < kChannels / 4; ++c) {
    const float4 y = column[c];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = reinterpret_cast<const float4*>(a.row(first_row + r))[c];
      products[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
  }
}

// sums[r][i] += over the tile's rows j: weights[r] of lane j times channel (lane + 32 i) of row j.
template <int kChannels>
__device__ void add_weighted_rows(float (&sums)[kRows][kChannels / 32],
                                  const float (&weights)[kRows], const Tile<kChannels>& rows,
                                  int lane) {
#pragma unroll 2
  for (int j = 0; j < kTile; ++j) {
    float weight[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) weight[r] = __shfl_sync(kFullMask, weights[r], j);
#pragma unroll
    for (int i = 0; i < kChannels / 32; ++i) {
      const float value = rows.row(j)[lane + 32 * i];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r][i] += weight[r] * value;
    }
  }
}

// Scales and writes four rows of a warp, except those outside.
template <class T, int kChannels>
__device__ void store_rows(const DeviceHeads<T>& to, int64_t batch, int head, int64_t first,
                           int64_t rows, int d, const float (&values)[kRows][kChannels / 32],
                           const float (&factors)[kRows], int lane) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= rows) break;
    T* const row = to.row(batch, head, first + r);
#pragma unroll
    for (int i = 0; i < kChannels / 32; ++i) {
      const int c = lane + 32 * i;
      if (c < d) row[c] = from_float<T>(values[r][i] * factors[r]);
    }
  }
}

// --- Forward ---

template <class T, int kChannels>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(DeviceHeads<T> out, float* lse, DeviceHeads<const T> q, DeviceHeads<const T> k,
                   DeviceHeads<const T> v, Problem p) {
  extern __shared__ float4 shared[];
  auto* const memory = reinterpret_cast<float*>(shared);
  const Tile<kChannels> q_tile{memory};
  const Tile<kChannels> k_tile{memory + Tile<kChannels>::kFloats};
  const Tile<kChannels> v_tile{memory + 2 * Tile<kChannels>::kFloats};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kRows;
  const QueryBlock<kTile> block(p);
  const int64_t first_query = block.query + first_row;
  const float slope = p.slope(block.head);

  float sums[kRows][kChannels / 32] = {};
  float largest[kRows];
  float total[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    largest[r] = -infinity();
    total[r] = 0;
  }
  q_tile.load(q, block.batch, block.head, block.query, p.sq, p.d, p.scale);
  const int64_t last_key = block.last_key(p, lane);
  for (int64_t key = block.first_tile(p, lane); key < last_key; key += kTile) {
    __syncthreads();  // all threads have read the tiles
    k_tile.load(k, block.batch, block.group, key, p.sk, p.d, 1.0f);
    v_tile.load(v, block.batch, block.group, key, p.sk, p.d, 1.0f);
    __syncthreads();

    const int64_t own_key = key + lane;
    const bool is_padding = own_key >= p.sk || p.is_padding(block.batch, own_key);
    float weights[kRows];
    row_products(weights, q_tile, first_row, k_tile, lane);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = first_query + r;
      const bool is_visible = !is_padding && query < p.sq &&
                              own_key >= p.first_key(block.batch, query) &&
                              own_key < p.last_key(block.batch, query);
      const float score = is_visible
                              ? p.capped(weights[r]) + p.bias(block.head, slope, query, own_key)
                              : -infinity();
      const float now_largest = larger(largest[r], warp_max(score));  // the same on every lane
      if (now_largest == -infinity()) {                               // every key so far is masked
        weights[r] = 0;
        continue;
      }
      const float weight = expf(score - now_largest);
      const float shrink = expf(largest[r] - now_largest);
      total[r] = total[r] * shrink + warp_sum(weight);
      largest[r] = now_largest;
#pragma unroll
      for (int i = 0; i < kChannels / 32; ++i) sums[r][i] *= shrink;
      weights[r] = p.has_dropout && query < p.sq
                       ? weight * p.dropout_factor(block.batch, block.head, query, own_key)
                       : weight;
    }
    add_weighted_rows(sums, weights, v_tile, lane);
  }

  float factors[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float shrink = 1.0f;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[block.head];
      const float now_largest = larger(largest[r], sink);
      shrink = expf(largest[r] - now_largest);
      total[r] = total[r] * shrink + expf(sink - now_largest);
      largest[r] = now_largest;
    }
    const bool is_fully_masked = total[r] == 0;  // false for NaN
    factors[r] = is_fully_masked ? 0.0f : shrink / total[r];
    const int64_t query = first_query + r;
    if (lse == nullptr || lane != 0 || query >= p.sq) continue;
    lse[(block.batch * p.heads + block.head) * p.sq + query] =
        is_fully_masked ? infinity() : largest[r] + logf(total[r]);
  }
  store_rows<T, kChannels>(out, block.batch, block.head, first_query, p.sq, p.d, sums, factors,
                           lane);
}

// --- Backward ---

// A warp's rows of scores in the backward pass.
struct ScoreRows {
  int64_t batch, first_query;
  int head;
  float slope;
  float lse[kRows];
  float delta[kRows];
};

// Backward pass of dropout and softmax for the lane's key: replaces the gradients of dropped
// probabilities by those of scores.
__device__ void differentiate(float (&dscores)[kRows], const float (&scores)[kRows],
                              const Problem& p, const ScoreRows& rows, int64_t key) {
  const bool is_padding = key >= p.sk || p.is_padding(rows.batch, key);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t query = rows.first_query + r;
    const bool is_query = query < p.sq;
    const bool is_visible = is_query && !is_padding && key >= p.first_key(rows.batch, query) &&
                            key < p.last_key(rows.batch, query);
    const float probability =
        is_visible
            ? expf(p.capped(scores[r]) + p.bias(rows.head, rows.slope, query, key) - rows.lse[r])
            : 0.0f;
    if (p.has_dropout && is_query) {
      dscores[r] *= p.dropout_factor(rows.batch, rows.head, query, key);
    }
    dscores[r] = probability * (dscores[r] - rows.delta[r]) * p.cap_slope(scores[r]);
  }
}

// dq, and delta = sum over channels of dout * out, which the other kernels read.
template <class T, int kChannels, bool kSharesTile>
__global__ void __launch_bounds__(kThreads)
    backward_queries_kernel(DeviceHeads<T> dq, float* delta, DeviceHeads<const T> dout,
                            DeviceHeads<const T> out, const float* lse, DeviceHeads<const T> q,
                            DeviceHeads<const T> k, DeviceHeads<const T> v, Problem p) {
  extern __shared__ float4 shared[];
  auto* const memory = reinterpret_cast<float*>(shared);
  const Tile<kChannels> q_tile{memory};
  const Tile<kChannels> dout_tile{memory + Tile<kChannels>::kFloats};
  const Tile<kChannels> k_tile{memory + 2 * Tile<kChannels>::kFloats};
  const Tile<kChannels> v_tile{memory + (kSharesTile ? 2 : 3) * Tile<kChannels>::kFloats};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kRows;
  const QueryBlock<kTile> block(p);
  const int64_t first_query = block.query + first_row;

  q_tile.load(q, block.batch, block.head, block.query, p.sq, p.d, p.scale);
  dout_tile.load(dout, block.batch, block.head, block.query, p.sq, p.d, 1.0f);
  __syncthreads();

  float sums[kRows][kChannels / 32] = {};
  ScoreRows rows{block.batch, first_query, block.head, p.slope(block.head), {}, {}};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t query = first_query + r;
    rows.lse[r] = infinity();
    rows.delta[r] = 0;
    if (query >= p.sq) continue;
    const T* const out_row = out.row(block.batch, block.head, query);
    for (int c = lane; c < p.d; c += 32) {
      rows.delta[r] += dout_tile.row(first_row + r)[c] * to_float(out_row[c]);
    }
    rows.delta[r] = warp_sum(rows.delta[r]);
    const int64_t at = (block.batch * p.heads + block.head) * p.sq + query;
    rows.lse[r] = lse[at];
    if (lane == 0) delta[at] = rows.delta[r];
  }

  const int64_t last_key = block.last_key(p, lane);
  for (int64_t key = block.first_tile(p, lane); key < last_key; key += kTile) {
    float scores[kRows];
    float dscores[kRows];
    __syncthreads();  // all threads have read the tiles
    v_tile.load(v, block.batch, block.group, key, p.sk, p.d, 1.0f);
    if constexpr (kSharesTile) {
      __syncthreads();
      row_products(dscores, dout_tile, first_row, v_tile, lane);
      __syncthreads();
    }
    k_tile.load(k, block.batch, block.group, key, p.sk, p.d, 1.0f);
    __syncthreads();
    row_products(scores, q_tile, first_row, k_tile, lane);
    if constexpr (!kSharesTile) row_products(dscores, dout_tile, first_row, v_tile, lane);
    differentiate(dscores, scores, p, rows, key + lane);
    add_weighted_rows(sums, dscores, k_tile, lane);
  }

  float factors[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) factors[r] = p.scale;
  store_rows<T, kChannels>(dq, block.batch, block.head, first_query, p.sq, p.d, sums, factors,
                           lane);
}

// dk and dv of a tile of keys: sums over the group's heads, and over queries, each in order.
template <class T, int kChannels, bool kSharesTile>
__global__ void __launch_bounds__(kThreads)
    backward_keys_kernel(DeviceHeads<T> dk, DeviceHeads<T> dv, const float* delta,
                         DeviceHeads<const T> dout, const float* lse, DeviceHeads<const T> q,
                         DeviceHeads<const T> k, DeviceHeads<const T> v, Problem p) {
  extern __shared__ float4 shared[];
  auto* const memory = reinterpret_cast<float*>(shared);
  const Tile<kChannels> k_tile{memory};
  const Tile<kChannels> v_tile{memory + Tile<kChannels>::kFloats};
  const Tile<kChannels> q_tile{memory + 2 * Tile<kChannels>::kFloats};
  const Tile<kChannels> dout_tile{memory + (kSharesTile ? 2 : 3) * Tile<kChannels>::kFloats};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kRows;
  const int64_t pair = blockIdx.x % (p.b * p.groups);
  const int64_t batch = pair / p.groups;
  const int group = static_cast<int>(pair % p.groups);
  const int64_t tile_key = blockIdx.x / (p.b * p.groups) * kTile;
  const int64_t first_key = tile_key + first_row;
  const int heads_per_group = p.heads / p.groups;

  k_tile.load(k, batch, group, tile_key, p.sk, p.d, 1.0f);
  v_tile.load(v, batch, group, tile_key, p.sk, p.d, 1.0f);

  float dk_sums[kRows][kChannels / 32] = {};
  float dv_sums[kRows][kChannels / 32] = {};
  // Under a causal mask, earlier queries do not see the tile, unless it is in their prefix.
  const int64_t visible_from =
      p.is_causal && p.prefix_ends == nullptr ? tile_key - p.query_offset : 0;
  const int64_t first_tile = visible_from > 0 ? visible_from / kTile * kTile : 0;
  const int64_t end_query = p.end_query(tile_key + kTile - 1);
  for (int head = group * heads_per_group; head < (group + 1) * heads_per_group; ++head) {
    const float slope = p.slope(head);
    for (int64_t tile_query = first_tile; tile_query < end_query; tile_query += kTile) {
      const int64_t query = tile_query + lane;
      const bool is_query = query < p.sq;
      const int64_t query_first_key = is_query ? p.first_key(batch, query) : p.sk;
      const int64_t query_last_key = is_query ? p.last_key(batch, query) : 0;
      // The same in every warp.
      if (warp_min(query_first_key) >= tile_key + kTile) continue;
      if (p.prefix_ends != nullptr && warp_max(query_last_key) <= tile_key) continue;
      float probabilities[kRows];
      float dscores[kRows];
      __syncthreads();  // all threads have read the tiles
      dout_tile.load(dout, batch, head, tile_query, p.sq, p.d, 1.0f);
      if constexpr (kSharesTile) {
        __syncthreads();
        row_products(dscores, v_tile, first_row, dout_tile, lane);
        __syncthreads();
      }
      q_tile.load(q, batch, head, tile_query, p.sq, p.d, p.scale);
      __syncthreads();
      row_products(probabilities, k_tile, first_row, q_tile, lane);
      if constexpr (!kSharesTile) row_products(dscores, v_tile, first_row, dout_tile, lane);

      const int64_t at = (batch * p.heads + head) * p.sq + query;
      const float query_lse = is_query ? lse[at] : infinity();
      const float query_delta = is_query ? delta[at] : 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t key = first_key + r;
        const bool is_visible =
            key < query_last_key && key >= query_first_key && !p.is_padding(batch, key);
        const float probability =
            is_visible
                ? expf(p.capped(probabilities[r]) + p.bias(head, slope, query, key) - query_lse)
                : 0.0f;
        const float factor =
            p.has_dropout && is_query ? p.dropout_factor(batch, head, query, key) : 1.0f;
        dscores[r] =
            probability * (factor * dscores[r] - query_delta) * p.cap_slope(probabilities[r]);
        probabilities[r] = probability * factor;
      }
      add_weighted_rows(dk_sums, dscores, q_tile, lane);
      if constexpr (kSharesTile) {
        __syncthreads();
        dout_tile.load(dout, batch, head, tile_query, p.sq, p.d, 1.0f);
        __syncthreads();
      }
      add_weighted_rows(dv_sums, probabilities, dout_tile, lane);
    }
  }

  const float ones[kRows] = {1, 1, 1, 1};  // the queries are already scaled
  store_rows<T, kChannels>(dk, batch, group, first_key, p.sk, p.d, dk_sums, ones, lane);
  store_rows<T, kChannels>(dv, batch, group, first_key, p.sk, p.d, dv_sums, ones, lane);
}

// Gradient of the relative bias. A block has the tiles of a head in one band, equally far from the
// diagonal: it sums tiles elementwise over samples and the band, then the diagonals of the sum.
// Each distance lies in two bands; with a zero start the order of the two additions does not
// matter.
template <class T, int kChannels>
__global__ void __launch_bounds__(kThreads)
    backward_bias_kernel(float* drelative_bias, const float* delta, DeviceHeads<const T> dout,
                         const float* lse, DeviceHeads<const T> q, DeviceHeads<const T> k,
                         DeviceHeads<const T> v, Problem p) {
  extern __shared__ float4 shared[];
  auto* const memory = reinterpret_cast<float*>(shared);
  const Tile<kChannels> of_queries{memory};
  const Tile<kChannels> of_keys{memory + Tile<kChannels>::kFloats};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * kRows;
  const int64_t query_tiles = (p.sq + kTile - 1) / kTile;
  const int head = static_cast<int>(blockIdx.x % p.heads);
  const int group = head / (p.heads / p.groups);
  const int64_t band = (blockIdx.x / p.heads - query_tiles + 1) * kTile;  // tile_key - tile_query

  float sums[kRows] = {};
  for (int64_t batch = 0; batch < p.b; ++batch) {
    for (int64_t tile_query = band < 0 ? -band : 0; tile_query < p.sq; tile_query += kTile) {
      const int64_t tile_key = tile_query + band;
      if (tile_key >= p.sk) break;
      const auto products = [&](float(&to)[kRows], const DeviceHeads<const T>& left,
                                const DeviceHeads<const T>& right, float factor) {
        __syncthreads();  // all threads have read the tiles
        of_queries.load(left, batch, head, tile_query, p.sq, p.d, factor);
        of_keys.load(right, batch, group, tile_key, p.sk, p.d, 1.0f);
        __syncthreads();
        row_products(to, of_queries, first_row, of_keys, lane);
      };
      float scores[kRows];
      float dscores[kRows];
      products(scores, q, k, p.scale);
      products(dscores, dout, v, 1.0f);
      ScoreRows rows{batch, tile_query + first_row, head, p.slope(head), {}, {}};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (rows.first_query + r >= p.sq) break;
        const int64_t at = (batch * p.heads + head) * p.sq + rows.first_query + r;
        rows.lse[r] = lse[at];
        rows.delta[r] = delta[at];
      }
      differentiate(dscores, scores, p, rows, tile_key + lane);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] += dscores[r];
    }
  }
  __syncthreads();  // all threads have read the tiles
  constexpr int kStride = kTile + 1;
#pragma unroll
  for (int r = 0; r < kRows; ++r) memory[(first_row + r) * kStride + lane] = sums[r];
  __syncthreads();
  const int distance = static_cast<int>(threadIdx.x) - kTile + 1;  // of column to row
  const int64_t index = band + distance + p.sq - 1;
  if (distance >= kTile || index < 0 || index >= p.sq + p.sk - 1) return;
  float sum = 0;
  for (int row = 0; row < kTile; ++row) {
    const int column = row + distance;
    if (column >= 0 && column < kTile) sum += memory[row * kStride + column];
  }
  atomicAdd(drelative_bias + int64_t{head} * (p.sq + p.sk - 1) + index, sum);
}

// --- Launching ---

// Calls f.operator()<element on the device, channels>(), with the padded channels of a head.
template <class F>
void dispatch(const ConstHeadsView& q, const F& f) {
  dispatch_floating(q.dtype, "attention", [&]<class T>() {
    if (q.d <= 32) return f.template operator()<T, 32>();
    if (q.d <= 64) return f.template operator()<T, 64>();
    if (q.d <= 128) return f.template operator()<T, 128>();
    f.template operator()<T, 256>();
  });
}

template <int kChannels>
constexpr int shared_bytes(int num_tiles) {
  return num_tiles * Tile<kChannels>::kFloats * static_cast<int>(sizeof(float));
}

template <int kChannels, class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int num_tiles, Stream stream,
            Arguments... arguments) {
  const int bytes = shared_bytes<kChannels>(num_tiles);
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes, stream.device);
  kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), native(stream)>>>(
      arguments...);
  MG_CUDA(cudaGetLastError());
}

// Calls f.operator()<kSharesTile>(number of tiles) for the device's shared memory.
template <int kChannels, class F>
void with_room(Stream stream, const F& f) {
  if constexpr (shared_bytes<kChannels>(4) > kMinSharedBytes) {
    static_assert(shared_bytes<kChannels>(3) <= kMinSharedBytes);
    if (shared_bytes<kChannels>(4) > max_shared_bytes(stream.device)) {
      return f.template operator()<true>(3);
    }
  }
  f.template operator()<false>(4);
}

int64_t num_tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

}  // namespace

void math_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                            ConstHeadsView v, const AttentionSettings& settings, Stream stream) {
  const int64_t blocks = num_tiles_of(q.s) * q.b * q.heads;
  if (blocks == 0) return;
  const Problem problem = problem_of(q, k, settings);
  dispatch(q, [&]<class T, int kChannels>() {
    launch<kChannels>(forward_kernel<T, kChannels>, blocks, 3, stream, heads_on_device<T>(out),
                      lse.is_null() ? nullptr : lse.as<float>(), heads_on_device<const T>(q),
                      heads_on_device<const T>(k), heads_on_device<const T>(v), problem);
  });
}

void math_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                             ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                             ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                             const AttentionSettings& settings, float* delta, Stream stream) {
  const int64_t query_blocks = num_tiles_of(q.s) * q.b * q.heads;
  const int64_t key_blocks = num_tiles_of(k.s) * k.b * k.heads;
  const int64_t bands = num_tiles_of(q.s) + num_tiles_of(k.s) - 1;
  const int64_t bias_blocks = drelative_bias.is_null() ? 0 : bands * q.heads;
  const Problem problem = problem_of(q, k, settings);
  dispatch(q, [&]<class T, int kChannels>() {
    const auto q_heads = heads_on_device<const T>(q);
    const auto k_heads = heads_on_device<const T>(k);
    const auto v_heads = heads_on_device<const T>(v);
    const auto dout_heads = heads_on_device<const T>(dout);
    with_room<kChannels>(stream, [&]<bool kSharesTile>(int num_tiles) {
      if (query_blocks > 0) {
        launch<kChannels>(backward_queries_kernel<T, kChannels, kSharesTile>, query_blocks,
                          num_tiles, stream, heads_on_device<T>(dq), delta, dout_heads,
                          heads_on_device<const T>(out), lse.as<float>(), q_heads, k_heads, v_heads,
                          problem);
      }
      if (key_blocks > 0) {
        launch<kChannels>(backward_keys_kernel<T, kChannels, kSharesTile>, key_blocks, num_tiles,
                          stream, heads_on_device<T>(dk), heads_on_device<T>(dv),
                          static_cast<const float*>(delta), dout_heads, lse.as<float>(), q_heads,
                          k_heads, v_heads, problem);
      }
    });
    if (bias_blocks > 0) {
      MG_CUDA(cudaMemsetAsync(drelative_bias.data, 0, static_cast<size_t>(drelative_bias.bytes()),
                              native(stream)));
      launch<kChannels>(backward_bias_kernel<T, kChannels>, bias_blocks, 2, stream,
                        drelative_bias.as<float>(), static_cast<const float*>(delta), dout_heads,
                        lse.as<float>(), q_heads, k_heads, v_heads, problem);
    }
  });
}

}  // namespace megatron::kernels::cuda
