#include <cooperative_groups.h>

#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/router_row.cuh"
#include "megatron/kernels/router.h"

// Choices that depend on all tokens. No host waits: a block, or a cluster of blocks, repeats passes
// over the tokens.
namespace megatron::kernels::cuda {
namespace {

// --- Order statistics ---

constexpr int kSelectThreads = 1024;
constexpr int kDigits = 256;

// Unsigned integers in the order of the values; -0 is 0.
__device__ __forceinline__ uint32_t ordered_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The `count` highest of some keys are those above `key`, and `ties` of those equal to it.
struct Selection {
  uint32_t key;
  int64_t ties;
};

// Radix selection by a block, a digit of 8 bits in each pass. f(i, key) sets the key of element i
// of n, and returns false if it has none. REQUIRES: 0 < count <= the number of keys.
template <class F>
__device__ Selection select_highest(int64_t n, int64_t count, const F& f) {
  __shared__ int histogram[kDigits];
  __shared__ Selection result;
  if (threadIdx.x == 0) result = {0, count};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    const uint32_t prefix = result.key;
    const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int64_t i = threadIdx.x; i < n; i += kSelectThreads) {
      uint32_t key;
      if (f(i, key) && (key & mask) == prefix) atomicAdd(histogram + (key >> shift & 0xff), 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kDigits - 1;
      for (; digit > 0 && histogram[digit] < result.ties; --digit) result.ties -= histogram[digit];
      result.key |= static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  return result;
}

// --- Capacities ---

// A block for each expert. Other blocks change only the ids of other experts meanwhile.
__global__ void __launch_bounds__(kSelectThreads)
    drop_tokens_kernel(int* ids, const float* weights, int64_t slots, int64_t capacity,
                       bool by_position) {
  __shared__ int shared[kWarp];
  const int expert = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int own = 0;
  for (int64_t i = threadIdx.x; i < slots; i += kSelectThreads) own += ids[i] == expert ? 1 : 0;
  if (block_sum(own, shared) <= capacity) return;
  // By position all slots are equal: the first ones stay.
  Selection kept{0, capacity};
  if (!by_position && capacity > 0) {
    kept = select_highest(slots, capacity, [&](int64_t i, uint32_t& key) {
      key = ordered_key(weights[i]);
      return ids[i] == expert;
    });
  }
  for (int64_t first = 0; first < slots; first += kSelectThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_own = i < slots && ids[i] == expert;
    const uint32_t key = is_own && !by_position ? ordered_key(weights[i]) : 0;
    const bool is_tie = is_own && key == kept.key;
    const unsigned ties = __ballot_sync(kFullMask, is_tie);
    if (lane_of_thread() == 0) shared[warp] = __popc(ties);
    __syncthreads();
    int before = __popc(ties & ((1u << lane_of_thread()) - 1));
    int all = 0;
    for (int w = 0; w < kSelectThreads / kWarp; ++w) {
      before += w < warp ? shared[w] : 0;
      all += shared[w];
    }
    __syncthreads();
    const bool stays = is_tie ? before < kept.ties : capacity > 0 && key > kept.key;
    if (is_own && !stays) ids[i] = -1;
    kept.ties -= all;
  }
}

// --- Quantiles ---

// thresholds[t] = the (k + 1)-th largest logits[t] - bias.
template <int kLane>
__global__ void __launch_bounds__(kThreads)
    choice_thresholds_kernel(float* thresholds, const float* logits, const float* bias,
                             int64_t tokens, int experts, int k) {
  for_warp_tokens(tokens, [&](int64_t t, int lane) {
    ExpertRow<kLane> row(logits + t * experts, experts);
    row.each([&](float& x, int e) { x = e < experts ? x - bias[e] : kNever; });
    Chooser<kLane, float> chooser{row};
    Candidate<float> next{};
    for (int j = 0; j <= k; ++j) next = chooser.take(0, experts);
    if (lane == 0) thresholds[t] = next.value;
  });
}

// A block for each expert.
__global__ void __launch_bounds__(kSelectThreads)
    quantiles_kernel(float* quantiles, const float* logits, const float* thresholds, int64_t tokens,
                     int64_t count) {
  const Selection found = select_highest(tokens, count, [&](int64_t t, uint32_t& key) {
    key = ordered_key(logits[t * gridDim.x + blockIdx.x] - thresholds[t]);
    return true;
  });
  if (threadIdx.x == 0) quantiles[blockIdx.x] = value_of_key(found.key);
}

// --- Sinkhorn's iteration ---

constexpr int kBalanceBlocks = 8;  // the cluster; without clusters one block
constexpr int kBalanceThreads = 512;
constexpr int kBalanceWarps = kBalanceThreads / kWarp;

__device__ __forceinline__ void sync_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (gridDim.x > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}
// A value in the shared memory of another block of the cluster.
__device__ __forceinline__ float value_of_block(float* own, unsigned block) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (gridDim.x > 1) return *cooperative_groups::this_cluster().map_shared_rank(own, block);
#endif
  return *own;
}

// The grid is one cluster. Each block has the sums of its tokens; every block adds them all in the
// same order, so that all end together.
template <int kLane>
__global__ void __launch_bounds__(kBalanceThreads)
    choose_balanced_kernel(int* ids, const float* logits, int64_t tokens, int experts, int k) {
  __shared__ float d1[kMaxExperts];
  __shared__ float d1_before[kMaxExperts];
  __shared__ float sums[kMaxExperts];
  __shared__ float shared[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto for_tokens = [&](const auto& f) {
    for (int64_t t = static_cast<int64_t>(blockIdx.x) * kBalanceWarps + warp; t < tokens;
         t += static_cast<int64_t>(gridDim.x) * kBalanceWarps) {
      ExpertRow<kLane> costs(logits + t * experts, experts);
      costs.each([&](float& x, int) { x = expf(x); });
      f(t, costs);
    }
  };
  // The factor of a token whose experts have the factors d.
  const auto d0_of = [&](ExpertRow<kLane>& costs, const float* d) {
    float sum = 0;
    costs.each([&](float x, int e) { sum += e < experts ? d[e] * x : 0.0f; });
    return 1.0f / static_cast<float>(tokens) / (warp_sum(sum) + kBalanceLeast);
  };
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalanceThreads) d1[e] = 1.0f;
  __syncthreads();
  for (int iteration = 0; iteration < kMaxBalanceIterations; ++iteration) {
    float own[kLane] = {};
    for_tokens([&](int64_t, ExpertRow<kLane>& costs) {
      const float d0 = d0_of(costs, d1);
#pragma unroll
      for (int i = 0; i < kLane; ++i) own[i] += d0 * costs.x[i];
    });
    for (int w = 0; w < kBalanceWarps; ++w) {
      if (warp == w) {
#pragma unroll
        for (int i = 0; i < kLane; ++i) {
          const int e = i * kWarp + lane_of_thread();
          if (e < experts) sums[e] = w == 0 ? own[i] : sums[e] + own[i];
        }
      }
      __syncthreads();
    }
    sync_cluster();
    float error = 0;
    for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalanceThreads) {
      float sum = 0;
      for (unsigned block = 0; block < gridDim.x; ++block) sum += value_of_block(sums + e, block);
      const float next = 1.0f / static_cast<float>(experts) / (sum + kBalanceLeast);
      error += fabsf(d1[e] - next);
      d1_before[e] = d1[e];
      d1[e] = next;
    }
    error = block_sum(error, shared) / static_cast<float>(experts);
    sync_cluster();  // others may read this block's sums until here
    if (!(error > kBalanceTolerance)) break;
  }
  for_tokens([&](int64_t t, ExpertRow<kLane>& costs) {
    const float d0 = d0_of(costs, d1_before);
    costs.each([&](float& x, int e) { x = e < experts ? d1[e] * x * d0 : kNever; });
    Chooser<kLane, float> chooser{costs};
    for (int j = 0; j < k; ++j) {
      const Candidate<float> best = chooser.take(0, experts);
      if (lane_of_thread() == 0) ids[t * k + j] = best.id;
    }
  });
}

}  // namespace

void choose_balanced_experts(TensorView ids, ConstView logits, Stream stream) {
  const int64_t tokens = logits.size(0);
  expect_few_choices(ids.size(1));
  if (tokens == 0) return;
  with_lane_values(logits.size(1), [&]<int kLane>() {
    const auto kernel = choose_balanced_kernel<kLane>;
    const bool is_cluster = has_clusters(reinterpret_cast<const void*>(kernel), stream.device);
    const unsigned blocks = is_cluster ? kBalanceBlocks : 1;
    launch_overlapped(
        kernel, {.grid = blocks, .block = kBalanceThreads, .cluster = blocks, .overlaps = false},
        stream, ids.as<int32_t>(), logits.as<float>(), tokens, count_of(logits.size(1)),
        count_of(ids.size(1)));
  });
}

void balancing_quantiles(TensorView quantiles, TensorView thresholds, ConstView logits,
                         ConstView bias, int64_t topk, Stream stream) {
  const int64_t tokens = logits.size(0);
  const int64_t experts = logits.size(1);
  if (tokens == 0) return;
  with_lane_values(experts, [&]<int kLane>() {
    choice_thresholds_kernel<kLane><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        thresholds.as<float>(), logits.as<float>(), bias.as<float>(), tokens, count_of(experts),
        count_of(topk));
  });
  MG_CUDA(cudaGetLastError());
  quantiles_kernel<<<static_cast<unsigned>(experts), kSelectThreads, 0, native(stream)>>>(
      quantiles.as<float>(), logits.as<float>(), thresholds.as<float>(), tokens,
      tokens * topk / experts + 1);
  MG_CUDA(cudaGetLastError());
}

void drop_tokens(TensorView ids, ConstView weights, int64_t num_experts, int64_t capacity,
                 bool by_position, Stream stream) {
  if (ids.numel() == 0) return;
  drop_tokens_kernel<<<static_cast<unsigned>(num_experts), kSelectThreads, 0, native(stream)>>>(
      ids.as<int32_t>(), weights.as<float>(), ids.numel(), capacity, by_position);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
