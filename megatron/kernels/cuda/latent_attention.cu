#include "megatron/kernels/latent_attention.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "megatron/core/error.h"
#include "megatron/core/float8.h"
#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/launch.cuh"

// Plain kernels: no tensor cores, and the keys of a row are not divided among blocks.
namespace megatron::kernels::cuda {
namespace {

constexpr int kRowWarps = 8;
constexpr int kRowHeads = 4;  // of a block, which read a latent together
constexpr int kPerLane = kMaxCudaLatent / kWarp;

__device__ __forceinline__ float element_of(float x) { return x; }
__device__ __forceinline__ float element_of(BFloat16 x) { return to_float(x); }
__device__ __forceinline__ float element_of(Float16 x) { return to_float(x); }
__device__ __forceinline__ float element_of(int8_t x) { return static_cast<float>(x); }
__device__ __forceinline__ float element_of(Float8E4M3 x) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3);
  return __half2float(__half(half));
}

// Calls f.operator()<T, S>() with the types of the model and of its pages.
template <class F>
void dispatch_latent_pages(DType dtype, const KeyValuePages& pages, const F& f) {
  dispatch_floating(dtype, "latent_attention", [&]<class T>() {
    if (pages.has_scales()) return f.template operator()<T, Float8E4M3>();
    f.template operator()<T, T>();
  });
}

// Pages of keys of r and latents of c channels.
template <class S>
struct LatentStore {
  S* keys;
  S* latents;
  float2* scales;  // FP8: of a key and its latent
  int r, c, page_tokens;

  explicit LatentStore(const KeyValuePages& pages)
      : keys(pages.keys.as<S>()),
        latents(pages.values.as<S>()),
        scales(static_cast<float2*>(pages.scales.data)),
        r(static_cast<int>(pages.keys.size(3))),
        c(static_cast<int>(pages.values.size(3))),
        page_tokens(static_cast<int>(pages.page_tokens())) {}

  __device__ float2 scales_of(int64_t slot) const {
    return std::is_same_v<S, Float8E4M3> ? scales[slot] : float2{1, 1};
  }
};

// The table of a batch's rows.
struct RowTable {
  const int32_t* pages;
  const int32_t* lengths;
  const int32_t* queries;
  int rows, max_pages;

  explicit RowTable(const PageTable& table)
      : pages(table.pages.as<int32_t>()),
        lengths(table.lengths.as<int32_t>()),
        queries(table.queries.as<int32_t>()),
        rows(static_cast<int>(table.lengths.numel())),
        max_pages(static_cast<int>(table.pages.size(1))) {}

  __device__ int64_t slot(int row, int token, int page_tokens) const {
    return int64_t{pages[static_cast<int64_t>(row) * max_pages + token / page_tokens]} *
               page_tokens +
           token % page_tokens;
  }
};

struct LatentScores {
  float scale;
  int window;          // 0: none
  float cap;           // 0: none
  const float* sinks;  // [heads]; may be null
};

__device__ __forceinline__ float finite_largest(float x) { return x == -infinity() ? 0.0f : x; }

// A block has kRowHeads heads of a row. Its warps take the keys in turn, with the sums of a softmax
// online (Milakov and Gimelshein 2018, arXiv:1805.02867), and add them up in the end.
template <class T, class S>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    latent_kernel(DeviceHeads<T> out, LatentStore<S> store, DeviceHeads<const T> q_latent,
                  DeviceHeads<const T> q_rotated, RowTable table, LatentScores of, int heads) {
  __shared__ float queries[kRowHeads][kMaxCudaLatent + kMaxCudaRotated];
  __shared__ float sums[kRowWarps][kMaxCudaLatent];
  __shared__ float largest_of[kRowWarps][kRowHeads];
  __shared__ float total_of[kRowWarps][kRowHeads];
  const int row = static_cast<int>(blockIdx.x);
  const int first_head = static_cast<int>(blockIdx.y) * kRowHeads;
  const int length = table.lengths[row];
  if (length == 0) return;
  const int token = table.queries[row];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int width = store.c + store.r;
  for (int h = 0; h < kRowHeads; ++h) {
    const int head = min(first_head + h, heads - 1);
    for (int i = static_cast<int>(threadIdx.x); i < width; i += kRowWarps * kWarp) {
      const float q = i < store.c ? element_of(q_latent.row(0, head, token)[i])
                                  : element_of(q_rotated.row(0, head, token)[i - store.c]);
      queries[h][i] = q * of.scale;
    }
  }
  __syncthreads();

  float mine[kRowHeads][kPerLane]{};
  float largest[kRowHeads], total[kRowHeads];
#pragma unroll
  for (int h = 0; h < kRowHeads; ++h) {
    largest[h] = -infinity();
    total[h] = 0;
  }
  const int first_key = of.window > 0 && length > of.window ? length - of.window : 0;
  for (int key = first_key + warp; key < length; key += kRowWarps) {
    const int64_t slot = table.slot(row, key, store.page_tokens);
    const float2 scales = store.scales_of(slot);
    float latent[kPerLane];
    float products[kRowHeads]{};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int channel = lane + i * kWarp;
      const bool exists = channel < store.c;
      latent[i] = exists ? element_of(store.latents[slot * store.c + channel]) * scales.y : 0.0f;
#pragma unroll
      for (int h = 0; h < kRowHeads; ++h) {
        if (exists) products[h] = fmaf(queries[h][channel], latent[i], products[h]);
      }
    }
    for (int channel = lane; channel < store.r; channel += kWarp) {
      const float x = element_of(store.keys[slot * store.r + channel]) * scales.x;
#pragma unroll
      for (int h = 0; h < kRowHeads; ++h) {
        products[h] = fmaf(queries[h][store.c + channel], x, products[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kRowHeads; ++h) {
      float score = warp_sum(products[h]);
      if (of.cap > 0) score = of.cap * tanhf(score / of.cap);
      const float now = fmaxf(largest[h], score);
      const float factor = expf(largest[h] - finite_largest(now));
      const float weight = expf(score - finite_largest(now));
      largest[h] = now;
      total[h] = fmaf(total[h], factor, weight);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        mine[h][i] = fmaf(mine[h][i], factor, weight * latent[i]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kRowHeads; ++h) {
    if (lane == 0) {
      largest_of[warp][h] = largest[h];
      total_of[warp][h] = total[h];
    }
  }

#pragma unroll
  for (int h = 0; h < kRowHeads; ++h) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sums[warp][lane + i * kWarp] = mine[h][i];
    __syncthreads();
    const int head = first_head + h;
    if (head >= heads) continue;
    float most = of.sinks == nullptr ? -infinity() : of.sinks[head];
    for (int w = 0; w < kRowWarps; ++w) most = fmaxf(most, largest_of[w][h]);
    most = finite_largest(most);
    float all = of.sinks == nullptr ? 0.0f : expf(of.sinks[head] - most);
    for (int w = 0; w < kRowWarps; ++w) {
      all = fmaf(total_of[w][h], expf(largest_of[w][h] - most), all);
    }
    T* const to = out.row(0, head, token);
    for (int channel = static_cast<int>(threadIdx.x); channel < store.c;
         channel += kRowWarps * kWarp) {
      float sum = 0;
      for (int w = 0; w < kRowWarps; ++w) {
        sum = fmaf(sums[w][channel], expf(largest_of[w][h] - most), sum);
      }
      to[channel] = from_float<T>(sum / all);
    }
  }
}

// A block puts the key and the latent of a token into its slot.
template <class T, class S>
__device__ float put_row(S* to, const T* from, int d, float* shared) {
  if constexpr (std::is_same_v<S, T>) {
    for (int i = static_cast<int>(threadIdx.x); i < d; i += static_cast<int>(blockDim.x)) {
      to[i] = from[i];
    }
    return 1;
  } else {
    float most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < d; i += static_cast<int>(blockDim.x)) {
      most = larger(most, fabsf(to_float(from[i])));
    }
    most = warp_max(most);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = most;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / kWarp; ++w) most = larger(most, shared[w]);
    const float scale = fp8_row_scale(most);
    for (int i = static_cast<int>(threadIdx.x); i < d; i += static_cast<int>(blockDim.x)) {
      const float x = scale > 0 ? to_float(from[i]) / scale : 0.0f;
      to[i].bits = static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
    }
    return scale;
  }
}
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    put_latents_kernel(LatentStore<S> store, DeviceHeads<const T> keys,
                       DeviceHeads<const T> latents, const int32_t* slots) {
  __shared__ float shared[kThreads / kWarp];
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const float of_key = put_row(store.keys + slot * store.r, keys.row(0, 0, token), store.r, shared);
  const float of_latent =
      put_row(store.latents + slot * store.c, latents.row(0, 0, token), store.c, shared);
  if (std::is_same_v<S, Float8E4M3> && threadIdx.x == 0) store.scales[slot] = {of_key, of_latent};
}

// A block takes the key and the latent of a token from the row's pages.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    take_latents_kernel(DeviceHeads<T> keys, DeviceHeads<T> latents, LatentStore<S> store,
                        const int32_t* row_pages) {
  const int token = static_cast<int>(blockIdx.x);
  const int64_t slot =
      int64_t{row_pages[token / store.page_tokens]} * store.page_tokens + token % store.page_tokens;
  const float2 scales = store.scales_of(slot);
  const auto take = [&](T* to, const S* from, int d, float scale) {
    for (int i = static_cast<int>(threadIdx.x); i < d; i += static_cast<int>(blockDim.x)) {
      to[i] = from_float<T>(element_of(from[i]) * scale);
    }
  };
  take(keys.row(0, 0, token), store.keys + slot * store.r, store.r, scales.x);
  take(latents.row(0, 0, token), store.latents + slot * store.c, store.c, scales.y);
}

// --- Products of heads ---

constexpr int kProductTokens = 8;  // of a block
constexpr int kProductColumns = 64;

template <class T, class W>
struct HeadProduct {
  T* y;
  const T* x;
  const W* w;
  const float* scales;  // may be null
  int tokens, m, k, head_rows, columns, first_row;
  bool is_transposed;
};

// A block has up to kProductTokens tokens of a head and kProductColumns columns of y: a thread for
// each column, or, if w is transposed, a warp for each of them in turn.
template <class T, class W>
__global__ void __launch_bounds__(kThreads) multiply_heads_kernel(const HeadProduct<T, W> p) {
  extern __shared__ float rows[];  // [kProductTokens, k]
  const int head = static_cast<int>(blockIdx.y);
  const int first_token = static_cast<int>(blockIdx.z) * kProductTokens;
  const int count = min(kProductTokens, p.tokens - first_token);
  const int64_t first = static_cast<int64_t>(head) * p.tokens + first_token;
  for (int i = static_cast<int>(threadIdx.x); i < kProductTokens * p.k;
       i += static_cast<int>(blockDim.x)) {
    rows[i] = i / p.k < count ? to_float(p.x[first * p.k + i]) : 0.0f;
  }
  __syncthreads();
  const int64_t first_row = static_cast<int64_t>(head) * p.head_rows + p.first_row;
  const int begin = static_cast<int>(blockIdx.x) * kProductColumns;
  const auto scale_of = [&](int row) {
    return p.scales == nullptr ? 1.0f : p.scales[first_row + row];
  };
  float sums[kProductTokens]{};
  if (!p.is_transposed) {
    const int column = begin + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kProductColumns || column >= p.m) return;
    for (int row = 0; row < p.k; ++row) {
      const float w = element_of(p.w[(first_row + row) * p.columns + column]) * scale_of(row);
#pragma unroll
      for (int t = 0; t < kProductTokens; ++t) sums[t] = fmaf(rows[t * p.k + row], w, sums[t]);
    }
    for (int t = 0; t < count; ++t) p.y[(first + t) * p.m + column] = from_float<T>(sums[t]);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int end = min(p.m, begin + kProductColumns);
  for (int column = begin + static_cast<int>(threadIdx.x) / kWarp; column < end; column += warps) {
#pragma unroll
    for (int t = 0; t < kProductTokens; ++t) sums[t] = 0;
    for (int i = lane; i < p.k; i += kWarp) {
      const float w = element_of(p.w[(first_row + column) * p.columns + i]);
#pragma unroll
      for (int t = 0; t < kProductTokens; ++t) sums[t] = fmaf(rows[t * p.k + i], w, sums[t]);
    }
    for (int t = 0; t < count; ++t) {
      const float sum = warp_sum(sums[t]) * scale_of(column);
      if (lane == 0) p.y[(first + t) * p.m + column] = from_float<T>(sum);
    }
  }
}

template <class T, class W>
void launch_product(const HeadProduct<T, W>& p, int64_t heads, Stream stream) {
  const dim3 grid(static_cast<unsigned>((p.m + kProductColumns - 1) / kProductColumns),
                  static_cast<unsigned>(heads),
                  static_cast<unsigned>((p.tokens + kProductTokens - 1) / kProductTokens));
  const auto bytes = static_cast<size_t>(kProductTokens * p.k) * sizeof(float);
  multiply_heads_kernel<T, W>
      <<<grid, p.is_transposed ? kThreads : kProductColumns, bytes, native(stream)>>>(p);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void latent_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q_latent,
                      ConstHeadsView q_rotated, const PageTable& table,
                      const PagedSettings& settings, Stream stream) {
  if (q_latent.d > kMaxCudaLatent || q_rotated.d > kMaxCudaRotated) {
    throw Unsupported("attention to latents on a GPU needs at most " +
                      std::to_string(kMaxCudaLatent) + " channels and rotated keys of at most " +
                      std::to_string(kMaxCudaRotated) + "; these have " +
                      std::to_string(q_latent.d) + " and " + std::to_string(q_rotated.d) +
                      ": use --device cpu");
  }
  const RowTable rows(table);
  if (rows.rows == 0 || out.heads == 0) return;
  const LatentScores scores{.scale = settings.scale,
                            .window = static_cast<int>(std::min<int64_t>(settings.window, 1 << 30)),
                            .cap = settings.logit_cap,
                            .sinks = static_cast<const float*>(settings.sinks.data)};
  const dim3 grid(static_cast<unsigned>(rows.rows),
                  static_cast<unsigned>((out.heads + kRowHeads - 1) / kRowHeads));
  dispatch_latent_pages(q_latent.dtype, pages, [&]<class T, class S>() {
    latent_kernel<T, S><<<grid, kRowWarps * kWarp, 0, native(stream)>>>(
        heads_on_device<T>(out), LatentStore<S>(pages), heads_on_device<const T>(q_latent),
        heads_on_device<const T>(q_rotated), rows, scores, static_cast<int>(out.heads));
    MG_CUDA(cudaGetLastError());
  });
}

void put_latents(const KeyValuePages& pages, ConstHeadsView keys, ConstHeadsView latents,
                 ConstView slots, Stream stream) {
  if (keys.s == 0) return;
  dispatch_latent_pages(keys.dtype, pages, [&]<class T, class S>() {
    put_latents_kernel<T, S><<<static_cast<unsigned>(keys.s), kThreads, 0, native(stream)>>>(
        LatentStore<S>(pages), heads_on_device<const T>(keys), heads_on_device<const T>(latents),
        slots.as<int32_t>());
    MG_CUDA(cudaGetLastError());
  });
}

void take_latents(HeadsView keys, HeadsView latents, const KeyValuePages& pages,
                  ConstView row_pages, Stream stream) {
  if (keys.s == 0) return;
  dispatch_latent_pages(keys.dtype, pages, [&]<class T, class S>() {
    take_latents_kernel<T, S><<<static_cast<unsigned>(keys.s), kThreads, 0, native(stream)>>>(
        heads_on_device<T>(keys), heads_on_device<T>(latents), LatentStore<S>(pages),
        row_pages.as<int32_t>());
    MG_CUDA(cudaGetLastError());
  });
}

void multiply_heads(TensorView y, ConstView x, ConstView w, ConstView scales, int64_t first_row,
                    Transpose transpose_w, Stream stream) {
  if (y.numel() == 0) return;
  constexpr int64_t kMostDepth = 48 * 1024 / (kProductTokens * 4);
  invariant(x.size(2) <= kMostDepth, "rows of heads fit into shared memory");
  dispatch_floating(x.dtype, "multiply_heads", [&]<class T>() {
    const auto multiply = [&]<class W>() {
      launch_product(HeadProduct<T, W>{.y = y.as<T>(),
                                       .x = x.as<T>(),
                                       .w = w.as<W>(),
                                       .scales = static_cast<const float*>(scales.data),
                                       .tokens = static_cast<int>(x.size(1)),
                                       .m = static_cast<int>(y.size(2)),
                                       .k = static_cast<int>(x.size(2)),
                                       .head_rows = static_cast<int>(w.size(1)),
                                       .columns = static_cast<int>(w.size(2)),
                                       .first_row = static_cast<int>(first_row),
                                       .is_transposed = transpose_w == Transpose::kYes},
                     x.size(0), stream);
    };
    if (scales.data == nullptr) return multiply.template operator()<T>();
    if (w.dtype == DType::kInt8) return multiply.template operator()<int8_t>();
    multiply.template operator()<Float8E4M3>();
  });
}

}  // namespace megatron::kernels::cuda
