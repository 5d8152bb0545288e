#pragma once

#include <algorithm>

#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// Shared parts of the tensor-core attention kernels, forward and backward: tiles in shared memory,
// products with them, visible key ranges, masks and dropout.
namespace megatron::kernels::cuda {

inline constexpr int kUnit = 16;  // rows, and depth, of a tensor-core product
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// A thread's warp and lane, and its row and column pair in a 16 x 8 accumulator (mma.cuh).
struct LaneCoordinate {
  int warp = static_cast<int>(threadIdx.x) / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int row = lane / 4;         // and row + 8
  int column = lane % 4 * 2;  // and column + 1
};

// The rows of one head of one sample.
template <class T>
struct HeadRows {
  const T* data;
  int stride;
  int tokens, d;

  __device__ HeadRows(const DeviceHeads<const T>& x, int64_t batch, int head, int num_tokens,
                      int channels)
      : data(x.row(batch, head, 0)),
        stride(static_cast<int>(x.stride_s)),
        tokens(num_tokens),
        d(channels) {}
};

// Rows of a head in shared memory, kStride elements apart: an odd number of 16 bytes, so that the
// eight rows of a tensor-core load are in different banks.
template <class T, int kRows, int kChannels>
struct Rows {
  static constexpr int kStride = kChannels + kVector;
  static constexpr int kElements = kRows * kStride;

  // Starts copying rows [first, first + kRows) of x; zero beyond its tokens and channels.
  template <int kBlock>
  static __device__ __forceinline__ void copy(T* to, const HeadRows<T>& x, int first) {
    constexpr int kPerRow = kChannels / kVector;
    constexpr int kAtOnce = kBlock / kPerRow;  // rows
    const int row = static_cast<int>(threadIdx.x) / kPerRow;
    const int c = static_cast<int>(threadIdx.x) % kPerRow * kVector;
    if (kBlock % kPerRow != 0 && row >= kAtOnce) return;
    const T* from = x.data + int64_t{first + row} * x.stride + c;
    const int64_t step = int64_t{kAtOnce} * x.stride;
    T* const destination = to + row * kStride + c;
    const bool is_whole = first >= 0 && first + kRows <= x.tokens && x.d == kChannels;
#pragma unroll
    for (int i = 0; i < kRows; i += kAtOnce) {
      if (kRows % kAtOnce != 0 && i + row >= kRows) break;
      const int token = first + i + row;
      const bool is_inside = is_whole || (token >= 0 && token < x.tokens && c < x.d);
      copy_async_16(destination + i * kStride, is_inside ? from : x.data, is_inside);
      from += step;
    }
  }

  // The lane's address offset for load_matrices() of 16 x 16 elements whose tile rows are matrix
  // rows: a [rows, depth] or, transposed, b [depth, columns].
  static __device__ __forceinline__ int lane_offset_by_rows(int lane) {
    return lane % 16 * kStride + lane / 16 * 8;
  }
  // The same for tile rows that are matrix columns: b [columns, depth] or, transposed, a [depth,
  // rows].
  static __device__ __forceinline__ int lane_offset_by_columns(int lane) {
    return (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
  }
};

// sums[u] += a[u] b, with b [16 deep, 8 kTiles columns] in shared memory. add_by_columns(): tile
// rows are columns of b, which points to the lane's address at lane_offset_by_columns().
// add_by_rows(): tile rows are depths, at lane_offset_by_rows().
template <class T, int kStride, int kUnits, int kTiles>
__device__ __forceinline__ void add_by_columns(float (&sums)[kUnits][kTiles][4],
                                               const uint32_t (&a)[kUnits][4], const T* b) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    uint32_t two[4];
    load_matrices(two, b + t * 8 * kStride);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      multiply_add<T>(sums[u][t], a[u], two[0], two[1]);
      multiply_add<T>(sums[u][t + 1], a[u], two[2], two[3]);
    }
  }
}
template <class T, int kUnits, int kTiles>
__device__ __forceinline__ void add_by_rows(float (&sums)[kUnits][kTiles][4],
                                            const uint32_t (&a)[kUnits][4], const T* b) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    uint32_t two[4];
    load_matrices_transposed(two, b + t * 8);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      multiply_add<T>(sums[u][t], a[u], two[0], two[1]);
      multiply_add<T>(sums[u][t + 1], a[u], two[2], two[3]);
    }
  }
}

// Rounds and stores channels c and c + 1 of a row.
template <class T>
__device__ __forceinline__ void store_two(T* row, int c, int d, float first, float second) {
  if (c < d) *reinterpret_cast<uint32_t*>(row + c) = pack_two<T>(first, second);
}

// --- Visible key ranges ---

// Visible key range of a query tile, by causal mask, window, documents and prefixes: some query
// sees a key only if it is in [first, last); all queries see [unmasked_first, unmasked_last).
// Ignores padding.
struct VisibleKeys {
  int first, last, unmasked_first, unmasked_last;

  __device__ bool is_unmasked(int key, int n) const {
    return key >= unmasked_first && key + n <= unmasked_last;
  }
};

// The visible key range of queries [query, query + kQueries), at least one of which exists. Every
// lane gets the same result. Only kIsGeneral kernels support prefixes, relative biases and caps of
// scores, which would cost the others registers.
template <int kQueries, bool kIsGeneral>
__device__ __forceinline__ VisibleKeys visible_keys(const Problem& p, int64_t batch, int query,
                                                    int lane) {
  const int begin = max(query, 0);
  const int end = min(query + kQueries, p.sq);
  VisibleKeys visible{.first = p.window_first(begin),
                      .last = p.last_key(end - 1),
                      .unmasked_first = p.window_first(end - 1),
                      .unmasked_last = p.last_key(begin)};
  if (kIsGeneral && p.prefix_ends != nullptr) {
    visible.last = 0;
    visible.unmasked_last = p.sk;
    for (int i = begin + lane; i < end; i += kWarp) {
      const int last = p.last_key(batch, i);
      visible.last = max(visible.last, last);
      visible.unmasked_last = min(visible.unmasked_last, last);
    }
    visible.last = __reduce_max_sync(kFullMask, visible.last);
    visible.unmasked_last = __reduce_min_sync(kFullMask, visible.unmasked_last);
  }
  if (p.document_starts == nullptr) return visible;
  visible.first = p.sk;
  for (int i = begin + lane; i < end; i += kWarp) {
    const int first = p.first_key(batch, i);
    visible.first = min(visible.first, first);
    visible.unmasked_first = max(visible.unmasked_first, first);
  }
  visible.first = __reduce_min_sync(kFullMask, visible.first);
  visible.unmasked_first = __reduce_max_sync(kFullMask, visible.unmasked_first);
  return visible;
}

// The tiles of `keys` keys that hold visible keys, [first, last); empty if last <= first.
struct KeyTileRange {
  int first, last;
  __device__ KeyTileRange(const VisibleKeys& visible, int keys)
      : first(visible.first / keys), last((visible.last + keys - 1) / keys) {}
  __device__ bool has(int tile) const { return tile >= first && tile < last; }
};

// The visible key range [first, last) of one query; empty if the query does not exist.
template <bool kIsGeneral>
struct KeyRange {
  int first, last;

  __device__ KeyRange(const Problem& p, int64_t batch, int query)
      : first(p.first_key(batch, query)), last(0) {
    if (query < 0 || query >= p.sq) return;
    last = kIsGeneral ? p.last_key(batch, query) : p.last_key(query);
  }
  __device__ bool has(int key) const { return key >= first && key < last; }
};

// Key padding mask as bits, from a key on; 1 is padding. All lanes of a warp hold the same words.
template <int kWords>
struct KeyPaddingBits {
  uint32_t words[kWords] = {};

  __device__ __forceinline__ KeyPaddingBits(const Problem& p, int64_t batch, int key, int lane) {
    if (p.key_padding_mask == nullptr) return;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int own = key + w * kWarp + lane;
      words[w] = __ballot_sync(kFullMask, own < p.sk && p.key_padding_mask[batch * p.sk + own]);
    }
  }
  __device__ __forceinline__ bool any() const {
    uint32_t all = 0;
#pragma unroll
    for (const uint32_t word : words) all |= word;
    return all != 0;
  }
  // True if key i of word w is padding.
  __device__ __forceinline__ bool has(int w, int i) const { return (words[w] >> i & 1) != 0; }
};

// The relative bias of a query tile and a key tile in shared memory. Element key - query + kQueries
// - 1 is the bias of a key and a query, counted from the tiles' first ones.
template <int kQueries, int kKeys>
struct BiasWindow {
  static constexpr int kFloats = kQueries + kKeys;

  // Starts copying; zero for distances outside of the bias.
  template <int kBlock>
  static __device__ __forceinline__ void copy(float* to, const Problem& p, int head, int query,
                                              int key) {
    if (p.relative_bias == nullptr) return;
    const float* const bias = p.bias_by_distance(head);
    for (int i = static_cast<int>(threadIdx.x); i < kFloats; i += kBlock) {
      const int distance = i - kQueries + 1 + key - query;
      const bool is_inside = distance > -p.sq && distance < p.sk;
      copy_async_4(to + i, bias + (is_inside ? distance : 0), is_inside);
    }
  }
};

// A capped score in base 2 of a product scale q k / cap; `outer` is the cap in base 2.
__device__ __forceinline__ float capped_score(float x, float outer) {
  const float share = 1.0f - __fdividef(2.0f, exp2_fast(2.0f * kLog2E * x) + 1.0f);  // tanh x
  return outer * share;
}

// Adds position biases to the products q k and masks them; queries are rows. Returns the remaining,
// positive, scale to base-2 scores. `bias` points to the bias of the lane's first row and column.
template <class Shape, bool kIsGeneral>
__device__ __forceinline__ float bias_and_mask_rows(
    float (&x)[Shape::kUnits][Shape::kKeyTiles][4], const Problem& p, const VisibleKeys& visible,
    const KeyPaddingBits<Shape::kKeys / kWarp>& padding, int64_t batch, float slope,
    const float* bias, int query, int key, const LaneCoordinate& at) {
  float factor = p.scale * kLog2E;
  if (kIsGeneral && p.relative_bias != nullptr) {
    // Scores on a diagonal of tiles share their bias.
    constexpr int kRowTiles = 2 * Shape::kUnits;
#pragma unroll
    for (int diagonal = 1 - kRowTiles; diagonal < Shape::kKeyTiles; ++diagonal) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float shared = kLog2E * bias[diagonal * 8 + c];
#pragma unroll
        for (int row = 0; row < kRowTiles; ++row) {
          const int t = diagonal + row;
          if (t < 0 || t >= Shape::kKeyTiles) continue;
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
      for (int t = 0; t < Shape::kKeyTiles; ++t) {
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
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto position = static_cast<float>(p.key_offset + key + t * 8 + at.column + i % 2);
#pragma unroll
        for (int u = 0; u < Shape::kUnits; ++u) {
          x[u][t][i] = fmaf(x[u][t][i], factor, slope * kLog2E * position);
        }
      }
    }
    factor = 1;
  }
  if (!visible.is_unmasked(key, Shape::kKeys)) {
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const KeyRange<kIsGeneral> range(p, batch, query + u * kUnit + at.row + h * 8);
#pragma unroll
        for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (!range.has(key + t * 8 + at.column + c)) x[u][t][2 * h + c] = -infinity();
          }
        }
      }
    }
  }
  if (!padding.any()) return factor;
#pragma unroll
  for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (!padding.has(t / 4, t % 4 * 8 + at.column + c)) continue;
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) x[u][t][c] = x[u][t][c + 2] = -infinity();
    }
  }
  return factor;
}

// --- Query tiles ---

// Positions by which the first query tile precedes query 0: dropout counts positions in groups of
// 16, so query tiles begin at multiples of 16.
__device__ __forceinline__ int queries_before_first(const Problem& p) {
  return p.has_dropout ? p.first_position % kDropoutQueries : 0;
}

// --- Dropout ---

// Dropout's random words of a head of a sample.
struct DropoutHead {
  const PhiloxKeys<kDropoutRounds>& keys;
  int64_t sample;
  uint32_t first_row;
  uint32_t high_threshold;

  __device__ DropoutHead(const Problem& p, int64_t batch, int head)
      : keys(p.dropout_keys),
        sample(p.dropout.sample(batch)),
        first_row(static_cast<uint32_t>(p.first_dropout_row(head))),
        high_threshold(p.keep_threshold << 16) {}

  // The words of the counter of a position and a key; the rests are below 8.
  __device__ __forceinline__ AttentionWords words(int key_group, int key_rest, int position_group,
                                                  int position_rest) const {
    return dropout_words(static_cast<uint32_t>(key_group / 32 * 8 + key_rest),
                         first_row + static_cast<uint32_t>(position_group / 16 * 8 + position_rest),
                         sample, keys);
  }
  // True if the lower or upper half of a word keeps its probability.
  __device__ __forceinline__ bool keeps(uint32_t word, bool is_upper) const {
    return is_half_kept(word, is_upper, high_threshold);
  }
};

}  // namespace megatron::kernels::cuda
