#include "megatron/kernels/cuda/tensor_attention.h"

#include <mma.h>

#include "megatron/kernels/cuda/attention_problem.cuh"

// A block of four warps works on 64 queries or 64 keys, a warp on 16 of them. Scores of 16 queries
// and 64 keys go through shared memory, where two lanes share a query's row. The forward pass runs
// over the keys twice, first for the log-sum-exp, so that probabilities are final when they are
// multiplied and sums stay in the registers of the tensor cores, whose layout need not be known.
// The backward pass has one kernel for dq and one for dk and dv: each sum is one block's.
namespace megatron::kernels::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kTile = 64;
constexpr int kBlock = 128;  // threads
constexpr int kWarps = kBlock / kWarp;
constexpr int kUnit = 16;         // rows and columns of a product of a warp
constexpr int kScoreStride = 72;  // of 64 scores: rows begin on different banks
constexpr int kMaxChannels = 128;
constexpr int64_t kFewestQueries = 16;  // fewer would leave most of a tile empty

static_assert(kWarps * kUnit == kTile);

// The element as the tensor cores name it.
template <class T>
struct OnTensorCore;
template <>
struct OnTensorCore<BFloat16> {
  using Type = __nv_bfloat16;
};
template <>
struct OnTensorCore<Float16> {
  using Type = __half;
};

// 64 rows of a head, zero beyond its tokens and channels. The padding of 16 bytes spreads rows over
// banks; every row begins on a multiple of 16 bytes, every sixteenth on one of 32, as wmma asks.
template <class T, int kChannels>
struct Rows {
  static constexpr int kStride = kChannels + 8;
  static constexpr int kElements = kTile * kStride;
  using Element = typename OnTensorCore<T>::Type;
  T* data;

  __device__ void load(const Heads<const T>& x, int64_t batch, int head, int64_t first,
                       int64_t tokens, int d) const {
    constexpr int kPerRow = kChannels / kVector;
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPerRow; i += kBlock) {
      const int row = i / kPerRow;
      const int c = i % kPerRow * kVector;
      T* const to = data + row * kStride + c;
      if (first + row >= tokens || c >= d) {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        continue;
      }
      const T* const from = x.row(batch, head, first + row) + c;
      if (x.is_wide) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) to[j] = c + j < d ? from[j] : from_float<T>(0.0f);
    }
  }
  __device__ const T* row(int i) const { return data + i * kStride; }
  __device__ const Element* unit(int i) const {  // rows [16 i, 16 i + 16)
    return reinterpret_cast<const Element*>(data) + i * kUnit * kStride;
  }
};

// A warp's 16 x 64 scores in shared memory = its 16 rows of a times all rows of b.
template <class T, int kChannels>
__device__ void multiply_rows(float* scores, const Rows<T, kChannels>& a, int warp,
                              const Rows<T, kChannels>& b) {
  using Element = typename OnTensorCore<T>::Type;
  constexpr int kStride = Rows<T, kChannels>::kStride;
  wmma::fragment<wmma::accumulator, kUnit, kUnit, kUnit, float> sums[kTile / kUnit];
#pragma unroll
  for (int n = 0; n < kTile / kUnit; ++n) wmma::fill_fragment(sums[n], 0.0f);
#pragma unroll
  for (int c = 0; c < kChannels; c += kUnit) {
    wmma::fragment<wmma::matrix_a, kUnit, kUnit, kUnit, Element, wmma::row_major> left;
    wmma::load_matrix_sync(left, a.unit(warp) + c, kStride);
#pragma unroll
    for (int n = 0; n < kTile / kUnit; ++n) {
      wmma::fragment<wmma::matrix_b, kUnit, kUnit, kUnit, Element, wmma::col_major> right;
      wmma::load_matrix_sync(right, b.unit(n) + c, kStride);
      wmma::mma_sync(sums[n], left, right, sums[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTile / kUnit; ++n) {
    wmma::store_matrix_sync(scores + n * kUnit, sums[n], kScoreStride, wmma::mem_row_major);
  }
  __syncwarp();
}

// A warp's 16 rows of a result, in registers.
template <class T, int kChannels>
struct Sums {
  using Element = typename OnTensorCore<T>::Type;
  static constexpr int kStride = Rows<T, kChannels>::kStride;
  static constexpr int kUnits = kChannels / kUnit;
  static constexpr int kResultStride = kChannels + 4;
  static constexpr int kResultFloats = kUnit * kResultStride;  // of a warp, in shared memory
  wmma::fragment<wmma::accumulator, kUnit, kUnit, kUnit, float> units[kUnits];

  __device__ Sums() {
#pragma unroll
    for (int n = 0; n < kUnits; ++n) wmma::fill_fragment(units[n], 0.0f);
  }

  // += weights [16, 64] rows.   weights: the warp's rows, or, transposed, its columns
  template <class Order>
  __device__ void add(const T* weights, const Rows<T, kChannels>& rows) {
    constexpr bool kIsTransposed = std::is_same_v<Order, wmma::col_major>;
    const auto* const from = reinterpret_cast<const Element*>(weights);
#pragma unroll
    for (int k = 0; k < kTile / kUnit; ++k) {
      wmma::fragment<wmma::matrix_a, kUnit, kUnit, kUnit, Element, Order> left;
      wmma::load_matrix_sync(left, from + k * kUnit * (kIsTransposed ? kScoreStride : 1),
                             kScoreStride);
#pragma unroll
      for (int n = 0; n < kUnits; ++n) {
        wmma::fragment<wmma::matrix_b, kUnit, kUnit, kUnit, Element, wmma::row_major> right;
        wmma::load_matrix_sync(right, rows.unit(k) + n * kUnit, kStride);
        wmma::mma_sync(units[n], left, right, units[n]);
      }
    }
  }

  // Writes the rows [first, first + 16) that are inside, times factor. `memory` is the warp's own.
  __device__ void store(const Heads<T>& to, int64_t batch, int head, int64_t first, int64_t tokens,
                        int d, float factor, float* memory) const {
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      wmma::store_matrix_sync(memory + n * kUnit, units[n], kResultStride, wmma::mem_row_major);
    }
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int row = 0; row < kUnit && first + row < tokens; ++row) {
      T* const out = to.row(batch, head, first + row);
      for (int c = lane; c < d; c += kWarp) {
        out[c] = from_float<T>(memory[row * kResultStride + c] * factor);
      }
    }
    __syncwarp();
  }
};

// The query of a lane: row lane / 2 of the warp's sixteen. Two lanes share its keys, four and four.
struct QueryRow {
  int64_t query, first_key, last_key;  // sees keys [first_key, last_key) that are not hidden
  bool is_inside;

  __device__ QueryRow(const Problem& p, int64_t batch, int64_t first_query, int lane)
      : query(first_query + lane / 2), is_inside(query < p.sq) {
    first_key = is_inside ? p.first_key(batch, query) : 0;
    last_key = is_inside ? p.last_key(query) : 0;
  }
  __device__ bool sees(const Problem& p, int64_t batch, int64_t key) const {
    return key >= first_key && key < last_key && !p.is_hidden(batch, key);
  }
};

constexpr int kGroups = kTile / 8;  // of four keys that a lane takes
__device__ inline int column_of(int group, int lane) { return 8 * group + 4 * (lane % 2); }

// The lane's part of a row of scores, masked, from the products.
__device__ inline void masked_scores(float (&scores)[kGroups][4], const float* row,
                                     const Problem& p, const QueryRow& own, int64_t batch,
                                     float slope, int64_t tile_key, int lane) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const float4 four = *reinterpret_cast<const float4*>(row + column_of(g, lane));
    const float products[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = tile_key + column_of(g, lane) + i;
      scores[g][i] = own.sees(p, batch, key)
                         ? fmaf(products[i], p.scale, slope * static_cast<float>(key))
                         : -infinity();
    }
  }
}

// Factors of dropout for the lane's four keys of a group; ones without.
__device__ inline void dropout_of(float (&factors)[4], const Problem& p, const QueryRow& own,
                                  int64_t batch, int head, int64_t key) {
#pragma unroll
  for (int i = 0; i < 4; ++i) factors[i] = 1;
  if (p.has_dropout && own.is_inside) p.dropout_factors(factors, batch, head, own.query, key);
}

template <class T>
__device__ void store_four(T* to, const float (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = from_float<T>(values[i]);
}

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int row = lane / 2;  // of the warp's sixteen
};

constexpr int kScores = kUnit * kScoreStride;  // of a warp

// --- Forward ---

template <class T, int kChannels>
constexpr int forward_bytes() {
  return static_cast<int>(3 * Rows<T, kChannels>::kElements * sizeof(T) +
                          kWarps * kScores * (sizeof(float) + sizeof(T)));
}

template <class T, int kChannels>
__global__ void __launch_bounds__(kBlock)
    tensor_forward_kernel(Heads<T> out, float* lse, Heads<const T> q, Heads<const T> k,
                          Heads<const T> v, Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = Rows<T, kChannels>;
  auto* const tiles = reinterpret_cast<T*>(memory);
  const Tile q_tile{tiles};
  const Tile k_tile{tiles + Tile::kElements};
  const Tile v_tile{tiles + 2 * Tile::kElements};
  auto* const all_scores = reinterpret_cast<float*>(tiles + 3 * Tile::kElements);
  auto* const all_weights = reinterpret_cast<T*>(all_scores + kWarps * kScores);
  const Lane at;
  float* const scores = all_scores + at.warp * kScores;
  T* const weights = all_weights + at.warp * kScores;

  const QueryBlock<kTile> block(p);
  const QueryRow own(p, block.batch, block.query + at.warp * kUnit, at.lane);
  const float slope = p.slope(block.head);
  const int64_t first_tile = block.first_tile(p, at.lane);
  const int64_t last_key = block.last_key(p);
  q_tile.load(q, block.batch, block.head, block.query, p.sq, p.d);

  float largest = -infinity();
  float total = 0;
  for (int64_t key = first_tile; key < last_key; key += kTile) {
    __syncthreads();  // the tiles are no longer read
    k_tile.load(k, block.batch, block.group, key, p.sk, p.d);
    __syncthreads();
    multiply_rows(scores, q_tile, at.warp, k_tile);
    float values[kGroups][4];
    masked_scores(values, scores + at.row * kScoreStride, p, own, block.batch, slope, key, at.lane);
    float now_largest = largest;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) now_largest = fmaxf(now_largest, values[g][i]);
    }
    if (now_largest == -infinity()) continue;  // nothing seen so far
    total *= expf(largest - now_largest);
    largest = now_largest;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total += expf(values[g][i] - largest);
    }
  }
  const float other_largest = __shfl_xor_sync(kFullMask, largest, 1);
  const float other_total = __shfl_xor_sync(kFullMask, total, 1);
  const float whole_largest = fmaxf(largest, other_largest);
  float row_lse = infinity();
  if (whole_largest != -infinity()) {
    // The even lane's sum first on both.
    const float mine = total * expf(largest - whole_largest);
    const float others = other_total * expf(other_largest - whole_largest);
    row_lse = whole_largest + logf(at.lane % 2 == 0 ? mine + others : others + mine);
  }
  if (lse != nullptr && own.is_inside && at.lane % 2 == 0) {
    lse[(block.batch * p.heads + block.head) * p.sq + own.query] = row_lse;
  }

  Sums<T, kChannels> sums;
  for (int64_t key = first_tile; key < last_key; key += kTile) {
    __syncthreads();  // the tiles are no longer read
    k_tile.load(k, block.batch, block.group, key, p.sk, p.d);
    v_tile.load(v, block.batch, block.group, key, p.sk, p.d);
    __syncthreads();
    multiply_rows(scores, q_tile, at.warp, k_tile);
    float values[kGroups][4];
    masked_scores(values, scores + at.row * kScoreStride, p, own, block.batch, slope, key, at.lane);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int column = column_of(g, at.lane);
      float factors[4];
      dropout_of(factors, p, own, block.batch, block.head, key + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) factors[i] *= expf(values[g][i] - row_lse);
      store_four(weights + at.row * kScoreStride + column, factors);
    }
    __syncwarp();
    sums.template add<wmma::row_major>(weights, v_tile);
  }
  __syncthreads();  // the tiles are no longer read
  sums.store(out, block.batch, block.head, block.query + at.warp * kUnit, p.sq, p.d, 1.0f,
             reinterpret_cast<float*>(k_tile.data) + at.warp * Sums<T, kChannels>::kResultFloats);
}

// --- Backward ---

// Of the warp's 16 queries and the tile's 64 keys: dropped probabilities to `kept`, unless it is
// null, and gradients of the scores, without the scale, to `dscores`; both rounded to T.
template <class T>
__device__ void backward_scores(T* kept, T* dscores, const float* scores, const float* products,
                                const Problem& p, const QueryRow& own, int64_t batch, int head,
                                float slope, int64_t tile_key, float row_lse, float row_delta,
                                const Lane& at) {
  const int begin = at.row * kScoreStride;
  float values[kGroups][4];
  masked_scores(values, scores + begin, p, own, batch, slope, tile_key, at.lane);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int column = column_of(g, at.lane);
    const float4 four = *reinterpret_cast<const float4*>(products + begin + column);
    const float dprobability[4] = {four.x, four.y, four.z, four.w};
    float factors[4];
    dropout_of(factors, p, own, batch, head, tile_key + column);
    float gradients[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float probability = expf(values[g][i] - row_lse);
      gradients[i] = probability * (factors[i] * dprobability[i] - row_delta);
      factors[i] *= probability;
    }
    store_four(dscores + begin + column, gradients);
    if (kept != nullptr) store_four(kept + begin + column, factors);
  }
}

template <class T, int kChannels>
constexpr int backward_bytes() {
  return static_cast<int>(4 * Rows<T, kChannels>::kElements * sizeof(T) +
                          kWarps * kScores * (2 * sizeof(float) + 2 * sizeof(T)));
}

// dq, and delta = sum over channels of dout * out, which the other kernel reads.
template <class T, int kChannels>
__global__ void __launch_bounds__(kBlock)
    tensor_backward_queries_kernel(Heads<T> dq, float* delta, Heads<const T> dout,
                                   Heads<const T> out, const float* lse, Heads<const T> q,
                                   Heads<const T> k, Heads<const T> v, Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = Rows<T, kChannels>;
  auto* const tiles = reinterpret_cast<T*>(memory);
  const Tile q_tile{tiles};
  const Tile dout_tile{tiles + Tile::kElements};
  const Tile k_tile{tiles + 2 * Tile::kElements};
  const Tile v_tile{tiles + 3 * Tile::kElements};
  auto* const all_scores = reinterpret_cast<float*>(tiles + 4 * Tile::kElements);
  const Lane at;
  float* const scores = all_scores + at.warp * kScores;
  float* const products = scores + kWarps * kScores;
  T* const dscores = reinterpret_cast<T*>(all_scores + 2 * kWarps * kScores) + at.warp * kScores;

  const QueryBlock<kTile> block(p);
  const QueryRow own(p, block.batch, block.query + at.warp * kUnit, at.lane);
  const float slope = p.slope(block.head);
  q_tile.load(q, block.batch, block.head, block.query, p.sq, p.d);
  dout_tile.load(dout, block.batch, block.head, block.query, p.sq, p.d);
  __syncthreads();

  float row_delta = 0;
  float row_lse = infinity();
  if (own.is_inside) {
    const T* const out_row = out.row(block.batch, block.head, own.query);
    const T* const dout_row = dout_tile.row(at.warp * kUnit + at.row);
    for (int c = at.lane % 2; c < p.d; c += 2) {
      row_delta = fmaf(to_float(dout_row[c]), to_float(out_row[c]), row_delta);
    }
  }
  row_delta += __shfl_xor_sync(kFullMask, row_delta, 1);
  if (own.is_inside) {
    const int64_t place = (block.batch * p.heads + block.head) * p.sq + own.query;
    row_lse = lse[place];
    if (at.lane % 2 == 0) delta[place] = row_delta;
  }

  Sums<T, kChannels> sums;
  const int64_t last_key = block.last_key(p);
  for (int64_t key = block.first_tile(p, at.lane); key < last_key; key += kTile) {
    __syncthreads();  // the tiles are no longer read
    k_tile.load(k, block.batch, block.group, key, p.sk, p.d);
    v_tile.load(v, block.batch, block.group, key, p.sk, p.d);
    __syncthreads();
    multiply_rows(scores, q_tile, at.warp, k_tile);
    multiply_rows(products, dout_tile, at.warp, v_tile);
    backward_scores<T>(nullptr, dscores, scores, products, p, own, block.batch, block.head, slope,
                       key, row_lse, row_delta, at);
    __syncwarp();
    sums.template add<wmma::row_major>(dscores, k_tile);
  }
  __syncthreads();  // the tiles are no longer read
  sums.store(dq, block.batch, block.head, block.query + at.warp * kUnit, p.sq, p.d, p.scale,
             reinterpret_cast<float*>(k_tile.data) + at.warp * Sums<T, kChannels>::kResultFloats);
}

// dk and dv of a tile of keys: the sum over the group's heads in their order, and over queries in
// theirs. A warp makes the scores of 16 queries, and the sums of 16 keys.
template <class T, int kChannels>
__global__ void __launch_bounds__(kBlock)
    tensor_backward_keys_kernel(Heads<T> dk, Heads<T> dv, const float* delta, Heads<const T> dout,
                                const float* lse, Heads<const T> q, Heads<const T> k,
                                Heads<const T> v, Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = Rows<T, kChannels>;
  auto* const tiles = reinterpret_cast<T*>(memory);
  const Tile k_tile{tiles};
  const Tile v_tile{tiles + Tile::kElements};
  const Tile q_tile{tiles + 2 * Tile::kElements};
  const Tile dout_tile{tiles + 3 * Tile::kElements};
  auto* const all_scores = reinterpret_cast<float*>(tiles + 4 * Tile::kElements);
  const Lane at;
  float* const scores = all_scores + at.warp * kScores;
  float* const products = scores + kWarps * kScores;
  // [64 queries, 64 keys]
  auto* const kept = reinterpret_cast<T*>(all_scores + 2 * kWarps * kScores);
  T* const dscores = kept + kWarps * kScores;

  const int64_t pair = blockIdx.x % (p.b * p.groups);
  const int64_t batch = pair / p.groups;
  const int group = static_cast<int>(pair % p.groups);
  const int64_t tile_key = blockIdx.x / (p.b * p.groups) * kTile;
  const int heads_per_group = p.heads / p.groups;
  k_tile.load(k, batch, group, tile_key, p.sk, p.d);
  v_tile.load(v, batch, group, tile_key, p.sk, p.d);

  Sums<T, kChannels> dk_sums;
  Sums<T, kChannels> dv_sums;
  // Under a causal mask, earlier queries do not see the tile.
  const int64_t seen_from = p.is_causal ? tile_key - p.query_offset : 0;
  const int64_t first_tile = seen_from > 0 ? seen_from / kTile * kTile : 0;
  for (int head = group * heads_per_group; head < (group + 1) * heads_per_group; ++head) {
    const float slope = p.slope(head);
    for (int64_t tile_query = first_tile; tile_query < p.sq; tile_query += kTile) {
      int64_t first_key = p.sk;
#pragma unroll
      for (int i = 0; i < kTile; i += kWarp) {
        const int64_t query = tile_query + i + at.lane;
        if (query < p.sq) first_key = smaller(first_key, p.first_key(batch, query));
      }
      if (warp_min(first_key) >= tile_key + kTile) continue;  // the same in every warp
      __syncthreads();                                        // the tiles are no longer read
      q_tile.load(q, batch, head, tile_query, p.sq, p.d);
      dout_tile.load(dout, batch, head, tile_query, p.sq, p.d);
      __syncthreads();
      const QueryRow own(p, batch, tile_query + at.warp * kUnit, at.lane);
      const int64_t place = (batch * p.heads + head) * p.sq + own.query;
      const float row_lse = own.is_inside ? lse[place] : infinity();
      const float row_delta = own.is_inside ? delta[place] : 0.0f;
      multiply_rows(scores, q_tile, at.warp, k_tile);
      multiply_rows(products, dout_tile, at.warp, v_tile);
      backward_scores(kept + at.warp * kScores, dscores + at.warp * kScores, scores, products, p,
                      own, batch, head, slope, tile_key, row_lse, row_delta, at);
      __syncthreads();  // now those of all warps are there
      dv_sums.template add<wmma::col_major>(kept + at.warp * kUnit, dout_tile);
      dk_sums.template add<wmma::col_major>(dscores + at.warp * kUnit, q_tile);
    }
  }
  __syncthreads();  // the tiles are no longer read
  float* const results =
      reinterpret_cast<float*>(q_tile.data) + at.warp * Sums<T, kChannels>::kResultFloats;
  const int64_t first = tile_key + at.warp * kUnit;
  dk_sums.store(dk, batch, group, first, p.sk, p.d, p.scale, results);
  dv_sums.store(dv, batch, group, first, p.sk, p.d, 1.0f, results);
}

// --- Launching ---

// f.operator()<element on the device, channels>(), with the channels a head is padded to.
template <class F>
void dispatch(const ConstHeadsView& q, const F& f) {
  const auto with_channels = [&]<class T>() {
    if (q.d <= 64) return f.template operator()<T, 64>();
    f.template operator()<T, kMaxChannels>();
  };
  if (q.dtype == DType::kBFloat16) return with_channels.template operator()<BFloat16>();
  with_channels.template operator()<Float16>();
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int shared_bytes, Stream stream,
            Arguments... arguments) {
  MG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<static_cast<unsigned>(blocks), kBlock, static_cast<size_t>(shared_bytes),
           native(stream)>>>(arguments...);
  MG_CUDA(cudaGetLastError());
}

int64_t num_tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

}  // namespace

bool tensor_attention_takes(const ConstHeadsView& q) {
  return (q.dtype == DType::kBFloat16 || q.dtype == DType::kFloat16) && q.d <= kMaxChannels &&
         q.s >= kFewestQueries;
}

void tensor_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                              ConstHeadsView v, const AttentionSettings& settings, Stream stream) {
  const int64_t blocks = num_tiles_of(q.s) * q.b * q.heads;
  if (blocks == 0) return;
  const Problem problem = problem_of(q, k, settings);
  dispatch(q, [&]<class T, int kChannels>() {
    launch(tensor_forward_kernel<T, kChannels>, blocks, forward_bytes<T, kChannels>(), stream,
           heads_on_device<T>(out), lse.is_null() ? nullptr : lse.as<float>(),
           heads_on_device<const T>(q, kVector), heads_on_device<const T>(k, kVector),
           heads_on_device<const T>(v, kVector), problem);
  });
}

void tensor_attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, ConstHeadsView dout,
                               ConstHeadsView out, ConstView lse, ConstHeadsView q,
                               ConstHeadsView k, ConstHeadsView v,
                               const AttentionSettings& settings, float* delta, Stream stream) {
  const int64_t query_blocks = num_tiles_of(q.s) * q.b * q.heads;
  const int64_t key_blocks = num_tiles_of(k.s) * k.b * k.heads;
  const Problem problem = problem_of(q, k, settings);
  dispatch(q, [&]<class T, int kChannels>() {
    constexpr int kBytes = backward_bytes<T, kChannels>();
    const auto q_heads = heads_on_device<const T>(q, kVector);
    const auto k_heads = heads_on_device<const T>(k, kVector);
    const auto v_heads = heads_on_device<const T>(v, kVector);
    const auto dout_heads = heads_on_device<const T>(dout, kVector);
    if (query_blocks > 0) {
      launch(tensor_backward_queries_kernel<T, kChannels>, query_blocks, kBytes, stream,
             heads_on_device<T>(dq), delta, dout_heads, heads_on_device<const T>(out),
             lse.as<float>(), q_heads, k_heads, v_heads, problem);
    }
    if (key_blocks > 0) {
      launch(tensor_backward_keys_kernel<T, kChannels>, key_blocks, kBytes, stream,
             heads_on_device<T>(dk), heads_on_device<T>(dv), static_cast<const float*>(delta),
             dout_heads, lse.as<float>(), q_heads, k_heads, v_heads, problem);
    }
  });
}

}  // namespace megatron::kernels::cuda
