#include "megatron/kernels/cuda/attention_tile.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/paged_problem.cuh"

// The heads of a group are the columns of tensor-core products, so that a key is read once for all
// of them. A part's keys go round its warps in steps of 16. A warp has its own ring of steps in
// shared memory, keys and values: it computes with one while the others are copied, and it waits
// for no other warp before the end. The first copies start before earlier kernels have ended, but
// for the new key. Products read probabilities rounded to 16 bits.
namespace megatron::kernels::cuda {
namespace {

constexpr int kWarps = 2;
constexpr int kStep = kUnit;      // keys of a step
constexpr int kTileHeads = 8;     // columns of a product
constexpr int kKeysOfPart = 512;  // a block's keys
static_assert(kKeysOfPart >= kLeastPagedKeys);

template <class T, int kChannels>
using Tile = Rows<T, kStep, kChannels>;

// A lane's part of the queries of a block's heads.
template <class T, int kChannels, int kTiles>
struct QueryPart {
  uint32_t words[kChannels / kUnit][kTiles][2];

  __device__ __forceinline__ void load(const PagedProblem<T>& p, const PagedPlace& at, int token,
                                       const Lane& lane) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int h = t * kTileHeads + lane.row;
      const T* const q = p.q.row(0, at.first_head + min(h, at.num_heads - 1), token);
#pragma unroll
      for (int step = 0; step < kChannels / kUnit; ++step) {
#pragma unroll
        for (int deep = 0; deep < 2; ++deep) {
          const int channel = step * kUnit + deep * 8 + lane.column;
          words[step][t][deep] = h < at.num_heads && channel < p.d
                                     ? *reinterpret_cast<const uint32_t*>(q + channel)
                                     : 0u;
        }
      }
    }
  }
};

// Over the eight lanes that share columns.
__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

// What a warp has seen so far of its lane's two heads of each tile: the largest score, the sum of
// the weights of the lane's keys, and the weighted sums of values, whose rows are channels.
template <int kChannels, int kTiles>
struct RunningSums {
  float largest[kTiles][2];
  float total[kTiles][2] = {};
  float sums[kChannels / kUnit][kTiles][4] = {};

  __device__ RunningSums() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) largest[t][0] = largest[t][1] = -infinity();
  }

  // Adds a step: scores in base 2, rows are keys, and the lane's part of the values.
  template <class T>
  __device__ __forceinline__ void add(float (&x)[kTiles][4], const T* values) {
    uint32_t weights[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float now = fmaxf(largest[t][c], column_max(fmaxf(x[t][c], x[t][c + 2])));
        const float factor = exp2_fast(largest[t][c] - finite(now));
        largest[t][c] = now;
        x[t][c] = exp2_fast(x[t][c] - finite(now));
        x[t][c + 2] = exp2_fast(x[t][c + 2] - finite(now));
        total[t][c] = fmaf(total[t][c], factor, x[t][c] + x[t][c + 2]);
#pragma unroll
        for (int m = 0; m < kChannels / kUnit; ++m) {
          sums[m][t][c] *= factor;
          sums[m][t][c + 2] *= factor;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[t][half] = transposed_matrix(pack_two<T>(x[t][2 * half], x[t][2 * half + 1]));
      }
    }
#pragma unroll
    for (int m = 0; m < kChannels / kUnit; ++m) {
      uint32_t a[4];
      load_matrices_transposed(a, values + m * kUnit);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add<T>(sums[m][t], a, weights[t][0], weights[t][1]);
      }
    }
  }
};

// Blocks of a multiprocessor at once: as many as its shared memory or its registers have room for,
// because the loads of a short text follow one another.
template <int kChannels, int kTiles, int kStages>
constexpr int kBlocks = kChannels == 64 && kTiles == 1 ? 8 : (kStages == 2 ? 6 : 4);

// kStages: steps of a warp's ring.
template <class T, int kChannels, int kTiles, int kStages>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<kChannels, kTiles, kStages>)
    tensor_paged_kernel(const PagedProblem<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using KeyTile = Tile<T, kChannels>;
  constexpr int kHeads = kTiles * kTileHeads;
  constexpr int kPacks = kChannels / kVector;  // of a key
  constexpr int kRing = kStages * 2 * KeyTile::kElements;
  __shared__ int slots[kKeysOfPart];
  __shared__ float largest_of[kWarps][kHeads];
  __shared__ float total_of[kWarps][kHeads];

  const PagedPlace at(p, kHeads);
  const Lane lane;
  const int length = p.lengths[at.row];
  const int stored = p.num_stored(length);
  const int first_key = at.part * p.part_keys;
  const int num_keys = min(length - first_key, p.part_keys);
  const int new_key = stored < length ? length - 1 - first_key : -1;  // of the part
  T* const ring = reinterpret_cast<T*>(memory) + lane.warp * kRing;

  // Where the warp's keys are, in tokens of the store.
  for (int i = lane.lane; i / kStep * kStep * kWarps < num_keys; i += kWarp) {
    const int n = (i / kStep * kWarps + lane.warp) * kStep + i % kStep;
    const int key = first_key + min(n, num_keys - 1);
    slots[n] =
        p.pages[at.row * p.max_pages + key / p.page_tokens] * p.page_tokens + key % p.page_tokens;
  }
  __syncwarp();
  const auto start_copies = [&](int first, T* keys) {
    T* const values = keys + KeyTile::kElements;
#pragma unroll
    for (int i = 0; i < kStep * kPacks / kWarp; ++i) {
      const int n = i * kWarp + lane.lane;
      const int key = first + n / kPacks;
      const int channel = n % kPacks * kVector;
      if (key == new_key) continue;
      const int64_t from = (int64_t{slots[key]} * p.groups + at.group) * p.d + channel;
      const bool is_inside = first_key + key < stored && channel < p.d;
      const int to = n / kPacks * KeyTile::kStride + channel;
      copy_async_16(keys + to, is_inside ? p.keys + from : p.keys, is_inside);
      copy_async_16(values + to, is_inside ? p.values + from : p.values, is_inside);
    }
  };
  constexpr int kStride = kWarps * kStep;  // keys between two steps of a warp
  const int first_of_warp = lane.warp * kStep;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    const int first = first_of_warp + i * kStride;
    if (first < num_keys) start_copies(first, ring + i * 2 * KeyTile::kElements);
    end_batch_of_copies();
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (num_keys <= 0) return;

  const int token = p.queries[at.row];
  QueryPart<T, kChannels, kTiles> q;
  q.load(p, at, token, lane);
  // The lanes that put the new key and its value into the pages and into their step.
  const bool has_new_key = new_key >= 0 && new_key < num_keys &&
                           new_key / kStep % kWarps == lane.warp && lane.lane < kPacks;
  uint4 key{}, value{};
  if (has_new_key && lane.lane * kVector < p.d) {
    const int channel = lane.lane * kVector;
    key = *reinterpret_cast<const uint4*>(p.k.row(0, at.group, token) + channel);
    value = *reinterpret_cast<const uint4*>(p.v.row(0, at.group, token) + channel);
    if (at.chunk == 0) {
      *reinterpret_cast<uint4*>(p.place(p.keys, at.row, at.group, length - 1) + channel) = key;
      *reinterpret_cast<uint4*>(p.place(p.values, at.row, at.group, length - 1) + channel) = value;
    }
  }

  const bool has_bias = p.slopes != nullptr || p.distance_bias != nullptr;
  RunningSums<kChannels, kTiles> running;
  int stage = 0;
  for (int first = first_of_warp; first < num_keys; first += kStride) {
    T* const keys = ring + stage * 2 * KeyTile::kElements;
    T* const values = keys + KeyTile::kElements;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    wait_for_copies_before<kStages - 1>();
    if (has_new_key && new_key / kStep * kStep == first) {
      const int to = new_key % kStep * KeyTile::kStride + lane.lane * kVector;
      *reinterpret_cast<uint4*>(keys + to) = key;
      *reinterpret_cast<uint4*>(values + to) = value;
    }
    __syncwarp();

    float x[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kChannels / kUnit; ++step) {
      uint32_t a[4];
      load_matrices(a, keys + KeyTile::of_rows(lane.lane) + step * kUnit);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add<T>(x[t], a, q.words[step][t][0], q.words[step][t][1]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = first_key + first + lane.row + i / 2 * 8;
        const int h = min(t * kTileHeads + lane.column + i % 2, at.num_heads - 1);
        float score = x[t][i] * p.scale;
        if (has_bias && n < length) score += p.bias(at.first_head + h, n, length);
        x[t][i] = n < length ? score * kLog2E : -infinity();
      }
    }
    running.template add<T>(x, values + KeyTile::of_columns(lane.lane));

    __syncwarp();
    const int next = first + kStages * kStride;
    if (next < num_keys) start_copies(next, keys);
    end_batch_of_copies();
  }

  // The sums take the place of the warp's keys and values.
  constexpr int kSumStride = kChannels + 4;  // neighbouring heads in different banks
  static_assert(kHeads * kSumStride * sizeof(float) <= kRing * sizeof(T));
  auto* const to = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = t * kTileHeads + lane.column + i;
      const float total = column_sum(running.total[t][i]);
      if (lane.row == 0) {
        largest_of[lane.warp][h] = running.largest[t][i];
        total_of[lane.warp][h] = total;
      }
#pragma unroll
      for (int m = 0; m < kChannels / kUnit; ++m) {
        float* const row = to + h * kSumStride + m * kUnit + lane.row;
        row[0] = running.sums[m][t][i];
        row[8] = running.sums[m][t][i + 2];
      }
    }
  }
  __syncthreads();
  finish_part<kWarps, kHeads>(p, at, token, length, largest_of, total_of, [&](int w, int h) {
    const T* const of_warp = reinterpret_cast<const T*>(memory) + w * kRing;
    return reinterpret_cast<const float*>(of_warp) + h * kSumStride;
  });
}

template <class T, int kChannels, int kTiles, int kStages>
void launch(PagedProblem<T> p, int64_t rows, int64_t max_length, Stream stream) {
  const auto kernel = tensor_paged_kernel<T, kChannels, kTiles, kStages>;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  constexpr int kBytes =
      kWarps * kStages * 2 * Tile<T, kChannels>::kElements * static_cast<int>(sizeof(T));
  allow_shared_bytes(address, kBytes, stream.device);
  constexpr int kHeads = kTiles * kTileHeads;
  p.chunks = (p.heads / p.groups + kHeads - 1) / kHeads;
  p.divide(rows, max_length, kKeysOfPart);
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(rows * p.groups * p.chunks),
                                  static_cast<unsigned>(p.max_parts)),
                     .block = dim3(kWarps * kWarp),
                     .shared_bytes = static_cast<unsigned>(kBytes),
                     .overlaps = has_clusters(address, stream.device)},
                    stream, p);
}

template <class T, int kTiles>
void dispatch(const PagedProblem<T>& p, int64_t rows, int64_t max_length, Stream stream) {
  // Of many blocks more run at once with shorter rings; the sums are the same.
  constexpr int64_t kManyParts = 2048;
  const int64_t parts = rows * p.groups * ((max_length + kKeysOfPart - 1) / kKeysOfPart);
  if (p.d <= 64) return launch<T, 64, kTiles, 3>(p, rows, max_length, stream);
  if (kTiles == 1 && parts > kManyParts) return launch<T, 128, 1, 2>(p, rows, max_length, stream);
  launch<T, 128, kTiles, 3>(p, rows, max_length, stream);
}

}  // namespace

template <class T>
void tensor_paged_attention(const PagedProblem<T>& p, int64_t rows, int64_t max_length,
                            Stream stream) {
  if (p.heads / p.groups <= kTileHeads) return dispatch<T, 1>(p, rows, max_length, stream);
  dispatch<T, 2>(p, rows, max_length, stream);
}

template void tensor_paged_attention<BFloat16>(const PagedProblem<BFloat16>&, int64_t, int64_t,
                                               Stream);
template void tensor_paged_attention<Float16>(const PagedProblem<Float16>&, int64_t, int64_t,
                                              Stream);

}  // namespace megatron::kernels::cuda
