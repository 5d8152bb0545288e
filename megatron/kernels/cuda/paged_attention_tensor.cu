#include "megatron/kernels/cuda/attention_tile.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/paged_problem.cuh"

// The heads of a group are the rows of a tensor-core product, so that a key is read once for all of
// them. A warp has 32 keys and their values in shared memory; it starts to copy them, but for the
// new one, before earlier kernels have ended. Products read probabilities rounded to 16 bits.
namespace megatron::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kKeysOfWarp = kPagedKeys / kWarps;
static_assert(kKeysOfWarp == kWarp);
constexpr int kHeads = 16;  // of a block
constexpr int kKeyTiles = kKeysOfWarp / 8;

template <class T, int kChannels>
using Tile = Rows<T, kKeysOfWarp, kChannels>;

template <class T, int kChannels>
constexpr int kSharedBytes = kWarps * 2 *
                             Tile<T, kChannels>::kElements* static_cast<int>(sizeof(T));

// A lane's part of the queries of a block's heads, for a product over 16 channels a step.
template <class T, int kChannels>
struct QueryPart {
  uint32_t words[kChannels / kUnit][1][4];

  __device__ __forceinline__ void load(const PagedProblem<T>& p, const PagedPlace& at, int token,
                                       const Lane& lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = lane.row + 8 * half;
      const T* const q = p.q.row(0, at.first_head + min(h, at.num_heads - 1), token);
#pragma unroll
      for (int step = 0; step < kChannels / kUnit; ++step) {
#pragma unroll
        for (int deep = 0; deep < 2; ++deep) {
          const int channel = step * kUnit + deep * 8 + lane.column;
          words[step][0][half + 2 * deep] = h < at.num_heads && channel < p.d
                                                ? *reinterpret_cast<const uint32_t*>(q + channel)
                                                : 0u;
        }
      }
    }
  }
};

// The sum, or the maximum, over the four lanes that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kFullMask, x, 1);
  return x + __shfl_xor_sync(kFullMask, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
}

template <class T, int kChannels>
__global__ void __launch_bounds__(kWarps* kWarp) tensor_paged_kernel(const PagedProblem<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using KeyTile = Tile<T, kChannels>;
  constexpr int kPacks = kChannels / kVector;  // of a key
  constexpr int kChannelTiles = kChannels / 8;
  __shared__ float largest_of[kWarps][kHeads];
  __shared__ float total_of[kWarps][kHeads];

  const PagedPlace at(p, kHeads);
  const Lane lane;
  const int length = p.lengths[at.row];
  const int last = length - 1;
  const int stored = p.num_stored(length);
  const bool has_new_key = stored < length;
  const int first_key = at.part * kPagedKeys + lane.warp * kKeysOfWarp;
  auto* const keys = reinterpret_cast<T*>(memory) + lane.warp * 2 * KeyTile::kElements;
  T* const values = keys + KeyTile::kElements;
  const bool has_part = at.part * kPagedKeys < length;

  if (has_part) {
    // Where the lane's key is, in tokens of the store.
    const int own_key = min(first_key + lane.lane, max(last, 0));
    const int slot = p.pages[at.row * p.max_pages + own_key / p.page_tokens] * p.page_tokens +
                     own_key % p.page_tokens;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int n = i * kWarp + lane.lane;
      const int key = n / kPacks;
      const int channel = n % kPacks * kVector;
      const int64_t from =
          (int64_t{__shfl_sync(kFullMask, slot, key)} * p.groups + at.group) * p.d + channel;
      if (has_new_key && first_key + key == last) continue;
      const bool is_inside = first_key + key < stored && channel < p.d;
      const int to = key * KeyTile::kStride + channel;
      copy_async_16(keys + to, is_inside ? p.keys + from : p.keys, is_inside);
      copy_async_16(values + to, is_inside ? p.values + from : p.values, is_inside);
    }
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (!has_part) return;

  const int token = p.queries[at.row];
  const int new_key = last - first_key;  // of the warp's keys
  if (has_new_key && new_key >= 0 && new_key < kKeysOfWarp && lane.lane < kPacks) {
    const int channel = lane.lane * kVector;
    uint4 key{}, value{};
    if (channel < p.d) {
      key = *reinterpret_cast<const uint4*>(p.k.row(0, at.group, token) + channel);
      value = *reinterpret_cast<const uint4*>(p.v.row(0, at.group, token) + channel);
      if (at.chunk == 0) {
        *reinterpret_cast<uint4*>(p.place(p.keys, at.row, at.group, last) + channel) = key;
        *reinterpret_cast<uint4*>(p.place(p.values, at.row, at.group, last) + channel) = value;
      }
    }
    *reinterpret_cast<uint4*>(keys + new_key * KeyTile::kStride + channel) = key;
    *reinterpret_cast<uint4*>(values + new_key * KeyTile::kStride + channel) = value;
  }
  QueryPart<T, kChannels> q;
  q.load(p, at, token, lane);
  wait_for_copies();
  __syncwarp();

  float x[1][kKeyTiles][4] = {};
  const T* const k_lane = keys + KeyTile::of_columns(lane.lane);
#pragma unroll
  for (int step = 0; step < kChannels / kUnit; ++step) {
    add_by_columns<T, KeyTile::kStride>(x, q.words[step], k_lane + step * kUnit);
  }
  const bool has_bias = p.slopes != nullptr || p.distance_bias != nullptr;
#pragma unroll
  for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + t * 8 + lane.column + i % 2;
      const int h = min(lane.row + i / 2 * 8, at.num_heads - 1);
      float score = x[0][t][i] * p.scale;
      if (has_bias && key < length) score += p.bias(at.first_head + h, key, length);
      x[0][t][i] = key < length ? score * kLog2E : -infinity();
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = -infinity();
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      largest = fmaxf(largest, fmaxf(x[0][t][2 * half], x[0][t][2 * half + 1]));
    }
    largest = quad_max(largest);
    float total = 0;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        x[0][t][i] = exp2_fast(x[0][t][i] - finite(largest));
        total += x[0][t][i];
      }
    }
    total = quad_sum(total);
    if (lane.column == 0) {
      largest_of[lane.warp][lane.row + 8 * half] = largest;
      total_of[lane.warp][lane.row + 8 * half] = total;
    }
  }

  float sums[1][kChannelTiles][4] = {};
  const T* const v_lane = values + KeyTile::of_rows(lane.lane);
#pragma unroll
  for (int step = 0; step < kKeysOfWarp / kUnit; ++step) {
    uint32_t a[1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&four)[4] = x[0][2 * step + i / 2];
      a[0][i] = pack_two<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
    }
    add_by_rows<T>(sums, a, v_lane + step * kUnit * KeyTile::kStride);
  }

  // The sums take the place of the warp's keys and values.
  static_assert(kHeads * kChannels * sizeof(float) <= 2 * KeyTile::kElements * sizeof(T));
  __syncwarp();
  auto* const to = reinterpret_cast<float*>(keys);
#pragma unroll
  for (int t = 0; t < kChannelTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = lane.row + i / 2 * 8;
      to[h * kChannels + t * 8 + lane.column + i % 2] = sums[0][t][i];
    }
  }
  __syncthreads();
  finish_part<kWarps, kHeads>(p, at, token, length, largest_of, total_of, [&](int w, int h, int c) {
    const T* const of_warp = reinterpret_cast<const T*>(memory) + w * 2 * KeyTile::kElements;
    return reinterpret_cast<const float*>(of_warp)[h * kChannels + c];
  });
}

template <class T, int kChannels>
void launch(const PagedProblem<T>& p, int64_t rows, int64_t parts, Stream stream) {
  const auto kernel = tensor_paged_kernel<T, kChannels>;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  static_assert(kSharedBytes<T, kChannels> <= kLeastSharedBytes);
  allow_shared_bytes(address, kSharedBytes<T, kChannels>, stream.device);
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(rows * p.groups * p.chunks),
                                  static_cast<unsigned>(parts)),
                     .block = dim3(kWarps * kWarp),
                     .shared_bytes = static_cast<unsigned>(kSharedBytes<T, kChannels>),
                     .overlaps = has_clusters(address, stream.device)},
                    stream, p);
}

}  // namespace

template <class T>
void tensor_paged_attention(PagedProblem<T> problem, int64_t rows, int64_t parts, Stream stream) {
  problem.chunks = (problem.heads / problem.groups + kHeads - 1) / kHeads;
  if (problem.d <= 64) return launch<T, 64>(problem, rows, parts, stream);
  launch<T, 128>(problem, rows, parts, stream);
}

template void tensor_paged_attention<BFloat16>(PagedProblem<BFloat16>, int64_t, int64_t, Stream);
template void tensor_paged_attention<Float16>(PagedProblem<Float16>, int64_t, int64_t, Stream);

}  // namespace megatron::kernels::cuda
