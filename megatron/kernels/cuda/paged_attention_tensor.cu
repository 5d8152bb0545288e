#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/paged_step.cuh"

// Flash-Decoding (split-KV) over pages on tensor cores. The heads of a group are the columns of the
// products, so each key is read once for all of them. Steps of 16 keys are distributed cyclically
// over the warps. Each warp has its own multi-stage ring of keys and values in shared memory: it
// computes with one step while the others are copied, and synchronizes with other warps only at the
// end. Except for the new key, the first copies start before earlier kernels have ended. Products
// read probabilities rounded to 16 bits.
namespace megatron::kernels::cuda {
namespace {

constexpr int kWarps = 2;
constexpr int kKeysOfPart = 512;  // a block's keys
static_assert(kKeysOfPart >= kMinPagedKeys);

// Maximum and sum over the eight lanes that share columns.
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

// Online softmax state of the lane's two heads of each tile: running maximum, the lane's part of
// the sum of weights, and the weighted sums of values, whose rows are channels.
template <int kChannels, int kTiles>
struct RunningSoftmax {
  float largest[kTiles][2];
  float total[kTiles][2] = {};
  float sums[kChannels / kUnit][kTiles][4] = {};

  __device__ RunningSoftmax() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) largest[t][0] = largest[t][1] = -infinity();
  }

  // Adds a step of base-2 scores, whose rows are keys. `factors` scale the values of the lane's
  // rows.
  template <class T, class S>
  __device__ __forceinline__ void add(float (&x)[kTiles][4], const Step<S, kChannels>& step,
                                      const LaneCoordinate& lane, const float (&factors)[2]) {
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
        const float factor = factors[half];  // 1, but for FP8
        weights[t][half] =
            transposed_matrix(pack_two<T>(x[t][2 * half] * factor, x[t][2 * half + 1] * factor));
      }
    }
    for_each_value_fragment<T>(step, lane, [&](int unit, const uint32_t(&a)[4]) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add<T>(sums[unit][t], a, weights[t][0], weights[t][1]);
      }
    });
  }
};

// Resident blocks of a multiprocessor, limited by shared memory or registers: occupancy hides the
// latency of dependent loads of short texts.
template <class S, int kChannels, int kTiles, int kStages>
constexpr int kBlocks = kTiles > 1        ? 4
                        : kChannels == 64 ? 8
                        : kStages == 2    ? (kIsFp8<S> ? 8 : 6)
                                          : (kIsFp8<S> ? 6 : 4);

// kStages: ring stages of a warp, one step each.
template <class T, class S, int kChannels, int kTiles, int kStages>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<S, kChannels, kTiles, kStages>)
    tensor_paged_kernel(const PagedProblem<T, S> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using RingStep = Step<S, kChannels>;
  constexpr int kHeads = kTiles * kTileHeads;
  constexpr int kPacks = RingStep::kPacks;
  constexpr int kRing = kStages * RingStep::kBytes;
  __shared__ int slots[kKeysOfPart];
  __shared__ float largest_of_warps[kWarps][kHeads];
  __shared__ float total_of_warps[kWarps][kHeads];

  const PagedBlockIndex at(p, kHeads);
  const LaneCoordinate lane;
  const int length = p.lengths[at.row];
  const int stored = p.num_stored(length);
  const int first_key = at.part * p.part_keys;
  const int first_seen = p.first_key(length);
  const int num_keys = at.part < p.first_part_of(length) ? 0 : min(length - first_key, p.part_keys);
  const int new_key = stored < length ? length - 1 - first_key : -1;  // relative to the part
  unsigned char* const ring = memory + lane.warp * kRing;

  // Slots of the warp's keys, as token indices of the page store.
  for (int i = lane.lane; i / kStep * kStep * kWarps < num_keys; i += kWarp) {
    const int n = (i / kStep * kWarps + lane.warp) * kStep + i % kStep;
    const int key = first_key + min(n, num_keys - 1);
    slots[n] =
        p.pages[at.row * p.max_pages + key / p.page_tokens] * p.page_tokens + key % p.page_tokens;
  }
  __syncwarp();
  const auto start_copies = [&](int first, const RingStep& step) {
#pragma unroll
    for (int i = 0; i < kStep * kPacks / kWarp; ++i) {
      const int n = i * kWarp + lane.lane;
      const int key = first + n / kPacks;
      const int channel = n % kPacks * RingStep::kPack;
      if (key == new_key) continue;
      const int64_t from = (int64_t{slots[key]} * p.groups + at.group) * p.d + channel;
      const bool is_inside = first_key + key < stored && channel < p.d;
      copy_async_16(step.key(n / kPacks) + channel, is_inside ? p.keys + from : p.keys, is_inside);
      copy_async_16(step.value(n / kPacks) + channel, is_inside ? p.values + from : p.values,
                    is_inside);
    }
    if constexpr (kIsFp8<S>) {
      const int key = first + lane.lane;
      if (lane.lane >= kStep || key == new_key) return;
      const int64_t from = int64_t{slots[key]} * p.groups + at.group;
      const bool is_inside = first_key + key < stored;
      copy_async_8(step.scales() + lane.lane, is_inside ? p.scales + from : p.scales, is_inside);
    }
  };
  constexpr int kStride = kWarps * kStep;  // keys between two steps of a warp
  const int first_of_warp = lane.warp * kStep;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    const int first = first_of_warp + i * kStride;
    if (first < num_keys) start_copies(first, {ring + i * RingStep::kBytes});
    end_batch_of_copies();
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (num_keys <= 0) return;

  const int token = p.queries[at.row];
  QueryFragment<T, S, kChannels, kTiles> q;
  q.load(p, at, token, lane);
  // One warp stores the new key and value into their page and step.
  const bool has_new_key =
      new_key >= 0 && new_key < num_keys && new_key / kStep % kWarps == lane.warp;
  NewToken<T, S> new_token(lane, p.d);
  if (has_new_key) {
    new_token.load(p, at, token);
    if (at.chunk == 0) new_token.put_into_pages(p, at, length);
  }

  const bool has_bias = p.slopes != nullptr || p.distance_bias != nullptr;
  RunningSoftmax<kChannels, kTiles> running;
  int stage = 0;
  for (int first = first_of_warp; first < num_keys; first += kStride) {
    const RingStep step{ring + stage * RingStep::kBytes};
    stage = stage + 1 == kStages ? 0 : stage + 1;
    wait_for_copies_before<kStages - 1>();
    if (has_new_key && new_key / kStep * kStep == first) new_token.put(step, new_key % kStep);
    __syncwarp();

    float x[kTiles][4] = {};
    for_each_key_fragment<T>(step, lane, [&](int unit, const uint32_t(&a)[4]) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add<T>(x[t], a, q.words[unit][t][0], q.words[unit][t][1]);
      }
    });
    // Dequantization factors of the keys and values of the lane's two rows.
    float key_factors[2] = {p.scale, p.scale};
    float value_factors[2] = {1, 1};
    if constexpr (kIsFp8<S>) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 scales = step.scales()[lane.row + half * 8];
        key_factors[half] *= scales.x * Fp8Upcast<T>::kScoreFactor;
        value_factors[half] = scales.y * Fp8Upcast<T>::kWeightFactor;
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int n = first_key + first + lane.row + i / 2 * 8;
        const int h = min(t * kTileHeads + lane.column + i % 2, at.num_heads - 1);
        float score = x[t][i] * key_factors[i / 2];
        if (p.logit_cap > 0) score = p.capped(score);
        if (has_bias && n < length) score += p.bias(at.first_head + h, n, length);
        x[t][i] = n >= first_seen && n < length ? score * kLog2E : -infinity();
      }
    }
    running.template add<T>(x, step, lane, value_factors);

    __syncwarp();
    const int next = first + kStages * kStride;
    if (next < num_keys) start_copies(next, step);
    end_batch_of_copies();
  }

  // The sums reuse the shared memory of the warp's ring.
  constexpr int kSumStride = kChannels + 4;  // neighbouring heads in different banks
  static_assert(kHeads * kSumStride * static_cast<int>(sizeof(float)) <= kRing);
  auto* const to = reinterpret_cast<float*>(ring);
  const int2 channels = channels_of_rows<S>(lane.row);
  constexpr float kFactor = kIsFp8<S> ? Fp8Upcast<T>::kSumFactor : 1.0f;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = t * kTileHeads + lane.column + i;
      const float total = column_sum(running.total[t][i]);
      if (lane.row == 0) {
        largest_of_warps[lane.warp][h] = running.largest[t][i];
        total_of_warps[lane.warp][h] = total;
      }
#pragma unroll
      for (int unit = 0; unit < kChannels / kUnit; ++unit) {
        float* const row = to + h * kSumStride + unit * kUnit;
        row[channels.x] = running.sums[unit][t][i] * kFactor;
        row[channels.y] = running.sums[unit][t][i + 2] * kFactor;
      }
    }
  }
  __syncthreads();
  finish_part<kWarps, kHeads>(
      p, at, token, length, largest_of_warps, total_of_warps, [&](int w, int h) {
        return reinterpret_cast<const float*>(memory + w * kRing) + h * kSumStride;
      });
}

template <int kChannels, int kTiles, int kStages, class T, class S>
void launch(PagedProblem<T, S> p, int64_t rows, int64_t max_length, Stream stream) {
  const auto kernel = tensor_paged_kernel<T, S, kChannels, kTiles, kStages>;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  constexpr int kBytes = kWarps * kStages * Step<S, kChannels>::kBytes;
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

template <int kTiles, class T, class S>
void dispatch(const PagedProblem<T, S>& p, int64_t rows, int64_t max_length, Stream stream) {
  if (p.d <= 64) return launch<64, kTiles, 3>(p, rows, max_length, stream);
  // With many blocks, shorter rings raise occupancy; results are the same.
  constexpr int64_t kManyParts = 2048;
  const int64_t parts = rows * p.groups * ((max_length + kKeysOfPart - 1) / kKeysOfPart);
  if constexpr (kTiles == 1) {
    if (parts >= kManyParts) return launch<128, 1, 2>(p, rows, max_length, stream);
  }
  launch<128, kTiles, 3>(p, rows, max_length, stream);
}

}  // namespace

template <class T, class S>
void tensor_paged_attention(const PagedProblem<T, S>& p, int64_t rows, int64_t max_length,
                            Stream stream) {
  if (p.heads / p.groups <= kTileHeads) return dispatch<1>(p, rows, max_length, stream);
  dispatch<2>(p, rows, max_length, stream);
}

#define MG_INSTANTIATE(T, S) \
  template void tensor_paged_attention<T, S>(const PagedProblem<T, S>&, int64_t, int64_t, Stream)
MG_INSTANTIATE(BFloat16, BFloat16);
MG_INSTANTIATE(BFloat16, Float8E4M3);
MG_INSTANTIATE(Float16, Float16);
MG_INSTANTIATE(Float16, Float8E4M3);
#undef MG_INSTANTIATE

}  // namespace megatron::kernels::cuda
