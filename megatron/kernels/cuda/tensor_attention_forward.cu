#include "megatron/kernels/cuda/attention_softmax.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/tensor_attention.h"
#include "megatron/kernels/cuda/wgmma_attention.h"

// FlashAttention-2 (Dao 2023, arXiv:2307.08691, alg. 1) on tensor cores. A warp has 16 kUnits
// queries, whose scores, probabilities and accumulators stay in registers during one pass over the
// keys; the probabilities already have the register layout of the next product's left operand.
// Tiles of keys and values are double-buffered with asynchronous copies. Scores are in base 2
// throughout: exp(x) = 2^(x log2 e).
namespace megatron::kernels::cuda {
namespace {

// Tile shape: kWarps warps of 16 kUnits queries, key tiles of kKeys keys, heads padded to
// kChannels, and kBlocks resident blocks on a multiprocessor.
template <int kChannels_, int kUnits_, int kWarps_, int kKeys_, int kBlocks_>
struct ForwardShape {
  static constexpr int kChannels = kChannels_;
  static constexpr int kUnits = kUnits_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kBlock = kWarps_ * kWarp;  // threads
  static constexpr int kWarpQueries = kUnits * kUnit;
  static constexpr int kQueries = kWarps_ * kWarpQueries;
  static constexpr int kSteps = kChannels / kUnit;     // of a product over channels
  static constexpr int kKeyTiles = kKeys / 8;          // columns of a product
  static constexpr int kChannelTiles = kChannels / 8;  // the same
  static_assert(kKeys % kDropoutKeys == 0);

  template <class T>
  using QueryTile = Rows<T, kQueries, kChannels>;
  template <class T>
  using KeyTile = Rows<T, kKeys, kChannels>;
  using Window = BiasWindow<kQueries, kKeys>;
  template <class T, bool kIsGeneral>
  static constexpr int kBytes =
      static_cast<int>((QueryTile<T>::kElements + 4 * KeyTile<T>::kElements) * sizeof(T) +
                       (kIsGeneral ? 2 * Window::kFloats * sizeof(float) : 0));
};

// Applies dropout to the probabilities of 32 keys from `key` on, in accumulator tiles t .. t + 3.
template <class Shape>
__device__ __forceinline__ void drop(float (&x)[Shape::kUnits][Shape::kKeyTiles][4], int t,
                                     const DropoutHead& dropout, int position, int key,
                                     const LaneCoordinate& at) {
#pragma unroll
  for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const AttentionWords words = dropout.words(key, at.column + c, position + u * kUnit, at.row);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& one = x[u][t + i][2 * h + c];
          const auto word = static_cast<size_t>(2 * h + i / 2);
          one = dropout.keeps(words[word], i % 2 != 0) ? one : 0.0f;
        }
      }
    }
  }
}

template <class T, class Shape, bool kHasDropout, bool kIsGeneral>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kBlocks)
    tensor_forward_kernel(DeviceHeads<T> out, float* lse, DeviceHeads<const T> q,
                          DeviceHeads<const T> k, DeviceHeads<const T> v, Problem p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using QueryTile = typename Shape::template QueryTile<T>;
  using KeyTile = typename Shape::template KeyTile<T>;
  auto* const q_tile = reinterpret_cast<T*>(memory);
  T* const k_tiles = q_tile + QueryTile::kElements;
  T* const v_tiles = k_tiles + 2 * KeyTile::kElements;
  using Window = typename Shape::Window;
  auto* const windows = reinterpret_cast<float*>(v_tiles + 2 * KeyTile::kElements);
  const LaneCoordinate at;

  // Longest first: under a causal mask the last query tiles see the most keys.
  const int64_t pairs = p.b * p.heads;
  const int64_t pair = blockIdx.x % pairs;
  const int64_t batch = pair / p.heads;
  const int head = static_cast<int>(pair % p.heads);
  const int group = head / (p.heads / p.groups);
  const int tile = static_cast<int>(gridDim.x / pairs - 1 - blockIdx.x / pairs);
  const int first_query = tile * Shape::kQueries - queries_before_first(p);
  const VisibleKeys visible =
      visible_keys<Shape::kQueries, kIsGeneral>(p, batch, first_query, at.lane);
  const HeadRows<T> k_rows(k, batch, group, p.sk, p.d);
  const HeadRows<T> v_rows(v, batch, group, p.sk, p.d);

  const int first_key = visible.first / Shape::kKeys * Shape::kKeys;
  QueryTile::template copy<Shape::kBlock>(q_tile, HeadRows<T>(q, batch, head, p.sq, p.d),
                                          first_query);
  KeyTile::template copy<Shape::kBlock>(k_tiles, k_rows, first_key);
  KeyTile::template copy<Shape::kBlock>(v_tiles, v_rows, first_key);
  if constexpr (kIsGeneral) {
    Window::template copy<Shape::kBlock>(windows, p, head, first_query, first_key);
  }

  const int query = first_query + at.warp * Shape::kWarpQueries;  // the warp's first
  const bool has_queries = query < p.sq;
  const VisibleKeys own =
      has_queries ? visible_keys<Shape::kWarpQueries, kIsGeneral>(p, batch, query, at.lane)
                  : VisibleKeys{};
  const float slope = p.slope(head);
  const DropoutHead dropout(p, batch, head);
  const int position = p.first_position + query;
  const T* const q_lane = q_tile + at.warp * Shape::kWarpQueries * QueryTile::kStride +
                          QueryTile::lane_offset_by_rows(at.lane);

  const int bias_lane = Shape::kQueries - 1 - at.warp * Shape::kWarpQueries - at.row + at.column;

  OnlineSoftmax<Shape> softmax;
  int stage = 0;
  for (int key = first_key; key < visible.last; key += Shape::kKeys) {
    wait_for_copies();
    __syncthreads();  // this tile has arrived, and all warps have read the last one
    const int stage_offset = stage * KeyTile::kElements;
    const float* const bias = windows + stage * Window::kFloats + bias_lane;
    stage ^= 1;
    if (key + Shape::kKeys < visible.last) {
      KeyTile::template copy<Shape::kBlock>(k_tiles + stage * KeyTile::kElements, k_rows,
                                            key + Shape::kKeys);
      KeyTile::template copy<Shape::kBlock>(v_tiles + stage * KeyTile::kElements, v_rows,
                                            key + Shape::kKeys);
      if constexpr (kIsGeneral) {
        Window::template copy<Shape::kBlock>(windows + stage * Window::kFloats, p, head,
                                             first_query, key + Shape::kKeys);
      }
    }
    if (key >= own.last || key + Shape::kKeys <= own.first) continue;

    float x[Shape::kUnits][Shape::kKeyTiles][4] = {};
    const T* const k_lane = k_tiles + stage_offset + KeyTile::lane_offset_by_columns(at.lane);
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      uint32_t a[Shape::kUnits][4];
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) {
        load_matrices(a[u], q_lane + u * kUnit * QueryTile::kStride + step * kUnit);
      }
      add_by_columns<T, KeyTile::kStride>(x, a, k_lane + step * kUnit);
    }

    const KeyPaddingBits<Shape::kKeys / kWarp> padding(p, batch, key, at.lane);
    softmax.rescale(
        softmax.exponentiate(x, bias_and_mask_rows<Shape, kIsGeneral>(
                                    x, p, own, padding, batch, slope, bias, query, key, at)));

    const T* const v_lane = v_tiles + stage_offset + KeyTile::lane_offset_by_rows(at.lane);
#pragma unroll
    for (int step = 0; step < Shape::kKeys / kUnit; ++step) {
      if constexpr (kHasDropout) {
        if (step % 2 == 0) {
          drop<Shape>(x, 2 * step, dropout, position, p.key_offset + key + step * kUnit, at);
        }
      }
      uint32_t a[Shape::kUnits][4];
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&four)[4] = x[u][2 * step + i / 2];
          a[u][i] = pack_two<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
        }
      }
      add_by_rows<T>(softmax.sums, a, v_lane + step * kUnit * KeyTile::kStride);
    }
  }
  wait_for_copies();  // in case there were no keys

#pragma unroll
  for (int u = 0; u < Shape::kUnits; ++u) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own_query = query + u * kUnit + at.row + h * 8;
      float total = row_sum(softmax.total[u][h]);
      if (own_query < 0 || own_query >= p.sq) continue;
      const float shrink = add_sink(total, softmax.largest[u][h], p, head);
      const bool is_fully_masked = total == 0;  // false for NaN
      if (lse != nullptr && at.column == 0) {
        lse[pair * p.sq + own_query] =
            is_fully_masked ? infinity() : (softmax.largest[u][h] + log2f(total)) * kLn2;
      }
      const float factor = is_fully_masked ? 0.0f : shrink * p.kept / total;
      T* const to = out.row(batch, head, own_query);
#pragma unroll
      for (int t = 0; t < Shape::kChannelTiles; ++t) {
        const int c = t * 8 + at.column;
        const float(&four)[4] = softmax.sums[u][t];
        store_two(to, c, p.d, four[2 * h] * factor, four[2 * h + 1] * factor);
      }
    }
  }
}

template <class T, class Shape, bool kHasDropout, bool kIsGeneral>
void launch(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
            const ConstHeadsView& k, const ConstHeadsView& v, const AttentionSettings& settings,
            Stream stream) {
  const int64_t rows = q.s + (kHasDropout ? settings.query_offset % kDropoutQueries : 0);
  const int64_t blocks = (rows + Shape::kQueries - 1) / Shape::kQueries * q.b * q.heads;
  constexpr int kBytes = Shape::template kBytes<T, kIsGeneral>;
  const auto kernel = tensor_forward_kernel<T, Shape, kHasDropout, kIsGeneral>;
  static_assert(kBytes <= kMinSharedBytes);
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes, stream.device);
  kernel<<<static_cast<unsigned>(blocks), Shape::kBlock, kBytes, native(stream)>>>(
      heads_on_device<T>(out), lse.is_null() ? nullptr : lse.as<float>(),
      heads_on_device<const T>(q), heads_on_device<const T>(k), heads_on_device<const T>(v),
      problem_of(q, k, settings));
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void tensor_attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                              ConstHeadsView v, const AttentionSettings& settings, Stream stream) {
  if (q.s == 0 || q.b == 0) return;
  if (suits_warpgroups(q, k, settings) && has_warpgroup_attention(stream.device)) {
    return wgmma_attention_forward(out, lse, q, k, v, settings, stream);
  }
  const bool is_general = settings.relative_bias.data != nullptr ||
                          settings.prefix_ends.data != nullptr || settings.logit_cap > 0;
  const auto with_dropout = [&]<class T, class Shape, bool kHasDropout>() {
    is_general ? launch<T, Shape, kHasDropout, true>(out, lse, q, k, v, settings, stream)
               : launch<T, Shape, kHasDropout, false>(out, lse, q, k, v, settings, stream);
  };
  const auto with_shape = [&]<class T, class Shape>() {
    settings.dropout.is_active() ? with_dropout.template operator()<T, Shape, true>()
                                 : with_dropout.template operator()<T, Shape, false>();
  };
  const auto with_type = [&]<class T>() {
    if (q.d <= 64) return with_shape.template operator()<T, ForwardShape<64, 2, 4, 64, 2>>();
    if (q.d <= 96) return with_shape.template operator()<T, ForwardShape<96, 2, 4, 32, 2>>();
    with_shape.template operator()<T, ForwardShape<128, 2, 4, 32, 2>>();
  };
  if (q.dtype == DType::kBFloat16) return with_type.template operator()<BFloat16>();
  with_type.template operator()<Float16>();
}

}  // namespace megatron::kernels::cuda
