#include "megatron/kernels/cuda/attention_tile.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/tensor_attention.h"

// The gradient of the relative bias: the gradients of scores, summed over the samples. A block has
// a tile of queries and a tile of keys of one head, whose sums stay in registers during its pass
// over the samples; so the order of the sums is fixed, and no scores are stored. It computes the
// scores and the gradients of probabilities anew: two of the backward pass's five products.
namespace megatron::kernels::cuda {
namespace {

// Four warps of 16 queries; heads padded to kChannels.
template <int kChannels_>
struct BiasShape {
  static constexpr int kChannels = kChannels_;
  static constexpr int kUnits = 1;
  static constexpr int kQueries = 4 * kUnit;
  static constexpr int kKeys = 64;
  static constexpr int kKeyTiles = kKeys / 8;  // columns of a product
  static constexpr int kBlock = 4 * kWarp;     // threads

  template <class T>
  using Tile = Rows<T, kKeys, kChannels>;
  template <class T>
  static constexpr int kBytes = static_cast<int>(4 * Tile<T>::kElements * sizeof(T));
  static_assert(kQueries == kKeys && kKeys % kDropoutKeys == 0);
};

// A warp's products of 16 rows and all columns.
template <class Shape>
using Products = float[1][Shape::kKeyTiles][4];

template <class T, class Shape>
__device__ __forceinline__ void multiply_rows(Products<Shape>& x, const T* rows, const T* columns) {
#pragma unroll
  for (int step = 0; step < Shape::kChannels / kUnit; ++step) {
    uint32_t a[1][4];
    load_matrices(a[0], rows + step * kUnit);
    add_by_columns<T, Shape::template Tile<T>::kStride>(x, a, columns + step * kUnit);
  }
}

// Which probabilities are kept: bit 2 h + c of byte t for row h and column c of tile t.
template <class Shape>
__device__ __forceinline__ uint32_t kept_of(int t, const DropoutHead& dropout, int position,
                                            int key, const Lane& at) {
  uint32_t kept = 0;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const AttentionWords words =
        dropout.words(key + t * 8, at.column + c, position, at.row);  // of 32 keys
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_kept = dropout.keeps(words[static_cast<size_t>(2 * h + i / 2)], i % 2 != 0);
        kept |= static_cast<uint32_t>(is_kept) << (8 * i + 2 * h + c);
      }
    }
  }
  return kept;
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kBlock, 3)
    bias_gradient_kernel(float* drelative_bias, Heads<const T> dout, Heads<const T> q,
                         Heads<const T> k, Heads<const T> v, const float2* statistics, Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = typename Shape::template Tile<T>;
  auto* const q_tile = reinterpret_cast<T*>(memory);
  T* const dout_tile = q_tile + Tile::kElements;
  T* const k_tile = dout_tile + Tile::kElements;
  T* const v_tile = k_tile + Tile::kElements;
  const Lane at;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int group = head / (p.heads / p.groups);
  const int first_query = static_cast<int>(blockIdx.y) * Shape::kQueries - queries_before_first(p);
  const int key = static_cast<int>(blockIdx.z) * Shape::kKeys;
  const int query = first_query + at.warp * kUnit;  // the warp's first
  const int warp_rows = at.warp * kUnit * Tile::kStride;

  Products<Shape> sums = {};
  for (int64_t batch = 0; batch < p.b; ++batch) {
    const Seen seen = seen_by<Shape::kQueries>(p, batch, first_query, at.lane);
    if (key >= seen.last || key + Shape::kKeys <= seen.first) continue;
    __syncthreads();  // the last sample's tiles are read
    const auto copy = [&](T* to, const Heads<const T>& x, int of_head, int tokens, int first) {
      Tile::template copy<Shape::kBlock>(to, HeadRows<T>(x, batch, of_head, tokens, p.d), first);
    };
    copy(q_tile, q, head, p.sq, first_query);
    copy(k_tile, k, group, p.sk, key);
    copy(dout_tile, dout, head, p.sq, first_query);
    copy(v_tile, v, group, p.sk, key);
    wait_for_copies();
    __syncthreads();
    if (query >= p.sq) continue;

    Products<Shape> x = {};
    Products<Shape> dp = {};
    multiply_rows<T, Shape>(x, q_tile + warp_rows + Tile::of_rows(at.lane),
                            k_tile + Tile::of_columns(at.lane));
    multiply_rows<T, Shape>(dp, dout_tile + warp_rows + Tile::of_rows(at.lane),
                            v_tile + Tile::of_columns(at.lane));
    const float factor =
        finish_rows<Shape, true>(x, p, seen, batch, head, p.slope(head), query, key, at);
    float2 of_row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own_query = query + at.row + h * 8;
      const bool is_inside = own_query >= 0 && own_query < p.sq;
      of_row[h] = is_inside ? statistics[(batch * p.heads + head) * p.sq + own_query]
                            : make_float2(infinity(), 0.0f);
    }
    const DropoutHead dropout(p, batch, head);
    uint32_t kept = 0;
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
      if (p.has_dropout && t % 4 == 0) {
        kept = kept_of<Shape>(t, dropout, p.query_offset + query, key, at);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 row = of_row[i / 2];
        const float probability = exp2_fast(fmaf(x[0][t][i], factor, -row.x));
        const bool is_kept = !p.has_dropout || (kept >> (8 * (t % 4) + i) & 1) != 0;
        sums[0][t][i] += probability * ((is_kept ? dp[0][t][i] : 0.0f) - row.y);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int own_query = query + at.row + h * 8;
    if (own_query < 0 || own_query >= p.sq) continue;
    float* const row = drelative_bias + (int64_t{head} * p.sq + own_query) * p.sk;
#pragma unroll
    for (int t = 0; t < Shape::kKeyTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int own_key = key + t * 8 + at.column + c;
        if (own_key < p.sk) row[own_key] = sums[0][t][2 * h + c] * p.kept;
      }
    }
  }
}

}  // namespace

void tensor_attention_bias_gradient(TensorView drelative_bias, ConstHeadsView dout,
                                    ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                                    const AttentionSettings& settings, const float* statistics,
                                    Stream stream) {
  if (drelative_bias.numel() == 0) return;
  const Problem problem = problem_of(q, k, settings);
  const auto with_shape = [&]<class T, class Shape>() {
    const int64_t rows = q.s + (problem.has_dropout ? settings.query_offset % kDropoutQueries : 0);
    const dim3 grid(static_cast<unsigned>(q.heads),
                    static_cast<unsigned>((rows + Shape::kQueries - 1) / Shape::kQueries),
                    static_cast<unsigned>((k.s + Shape::kKeys - 1) / Shape::kKeys));
    constexpr int kBytes = Shape::template kBytes<T>;
    static_assert(kBytes <= kLeastSharedBytes);
    const auto kernel = bias_gradient_kernel<T, Shape>;
    allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes, stream.device);
    kernel<<<grid, Shape::kBlock, kBytes, native(stream)>>>(
        drelative_bias.as<float>(), heads_on_device<const T>(dout), heads_on_device<const T>(q),
        heads_on_device<const T>(k), heads_on_device<const T>(v),
        reinterpret_cast<const float2*>(statistics), problem);
    MG_CUDA(cudaGetLastError());
  };
  const auto with_type = [&]<class T>() {
    if (q.d <= 64) return with_shape.template operator()<T, BiasShape<64>>();
    if (q.d <= 96) return with_shape.template operator()<T, BiasShape<96>>();
    with_shape.template operator()<T, BiasShape<128>>();
  };
  if (q.dtype == DType::kBFloat16) return with_type.template operator()<BFloat16>();
  with_type.template operator()<Float16>();
}

}  // namespace megatron::kernels::cuda
