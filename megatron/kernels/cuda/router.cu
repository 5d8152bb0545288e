#include "megatron/kernels/router.h"

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/router_row.cuh"

namespace megatron::kernels::cuda {
namespace {

template <int kLane, class T>
__global__ void __launch_bounds__(kThreads)
    choose_experts_kernel(int* ids, const T* logits, ChoiceRule rule, int64_t tokens, int experts,
                          int k) {
  for_warp_tokens(tokens, [&](int64_t t, int lane) {
    rule.choose(ExpertRow<kLane, T>(logits + t * experts, experts), k, [&](int j, int expert) {
      if (lane == 0) ids[t * k + j] = expert;
    });
  });
}

template <int kLane, class T>
__global__ void __launch_bounds__(kThreads)
    expert_weights_kernel(float* weights, const T* logits, const int* ids, WeightRule rule,
                          int64_t tokens, int experts, int k) {
  for_warp_tokens(tokens, [&](int64_t t, int lane) {
    const int id = lane < k ? ids[t * k + lane] : -1;
    const ExpertRow<kLane> row(logits + t * experts, experts);
    const float x = id >= 0 ? static_cast<float>(logits[t * experts + id]) : kNever;
    const float y = weight_of<T>(rule, row, x, id);
    if (lane < k) weights[t * k + lane] = y;
  });
}

template <int kLane>
__global__ void __launch_bounds__(kThreads)
    route_tokens_kernel(int* ids, float* weights, AnyInput logits, ChoiceRule choice,
                        WeightRule rule, int64_t tokens, int experts, int k) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  for_warp_tokens(tokens, [&](int64_t t, int lane) {
    const ExpertRow<kLane> row(logits, t * experts, experts);
    int id = -1;  // lane j has choice j
    choice.choose(row, k, [&](int j, int expert) {
      if (lane == j) id = expert;
    });
    float x[1] = {kNever};
    if (id >= 0) logits.read(x, t * experts + id);
    const float y = weight_of<float>(rule, row, x[0], id);
    if (lane >= k) return;
    ids[t * k + lane] = id;
    weights[t * k + lane] = logits.dtype == DType::kFloat32    ? y
                            : logits.dtype == DType::kBFloat16 ? to_float(from_float<BFloat16>(y))
                                                               : to_float(from_float<Float16>(y));
  });
}

template <int kLane, class T>
__global__ void __launch_bounds__(kThreads)
    expert_weights_gradient_kernel(T* dlogits, const float* dweights, const T* logits,
                                   const int* ids, WeightRule rule, int64_t tokens, int experts,
                                   int k) {
  for_warp_tokens(tokens, [&](int64_t t, int lane) {
    const int id = lane < k ? ids[t * k + lane] : -1;
    const bool has_choice = id >= 0;
    const float x = has_choice ? static_cast<float>(logits[t * experts + id]) : kNever;
    T d = has_choice ? dweights[t * k + lane] * rule.scaling_factor : 0.0f;
    ExpertRow<kLane> row(logits + t * experts, experts);
    if (rule.is_softmax_of_all) {
      row.softmax();
    } else if (rule.is_softmax_of_chosen) {
      const float y = softmax_of_lanes(x, has_choice);
      d = y * (d - warp_sum(y * d));
    } else if (has_choice || rule.is_divided) {
      const float y = has_choice ? single_score(x, rule.single) : 0.0f;
      if (rule.is_divided) {
        const T sum = warp_sum<T>(y) + kLeastSum;
        d = (d - warp_sum(y * d) / sum) / sum;
      }
      d = has_choice ? d * single_derivative(x, rule.single) : T{};
    }
    // The gradient of each expert's own weight.
    T of_expert[kLane] = {};
    for (int j = 0; j < k; ++j) {
      const int chosen = __shfl_sync(kFullMask, id, j);
      const T gradient = __shfl_sync(kFullMask, d, j);
#pragma unroll
      for (int i = 0; i < kLane; ++i) {
        if (i * kWarp + lane == chosen) of_expert[i] = gradient;
      }
    }
    if (rule.is_softmax_of_all) {
      T dot = 0;
#pragma unroll
      for (int i = 0; i < kLane; ++i) dot += row.x[i] * of_expert[i];
      dot = warp_sum(dot);
#pragma unroll
      for (int i = 0; i < kLane; ++i) of_expert[i] = row.x[i] * (of_expert[i] - dot);
    }
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      const int e = i * kWarp + lane;
      if (e < experts) dlogits[t * experts + e] = of_expert[i];
    }
  });
}

template <int kLane>
__global__ void __launch_bounds__(kThreads)
    router_scores_kernel(float* scores, const float* logits, RouterScore score, int64_t tokens,
                         int experts) {
  for_warp_tokens(tokens, [&](int64_t t, int) {
    ExpertRow<kLane> row(logits + t * experts, experts);
    if (score == RouterScore::kSoftmax) {
      row.softmax();
    } else {
      row.each([&](float& x, int) { x = single_score(x, score); });
      const float sum = row.sum() + kLeastSum;
      row.each([&](float& x, int) { x /= sum; });
    }
    row.write(scores + t * experts);
  });
}

template <int kLane>
__global__ void __launch_bounds__(kThreads)
    router_scores_gradient_kernel(float* dlogits, const float* dy, const float* weights,
                                  int64_t groups, const float* logits, RouterScore score,
                                  float alpha, int64_t tokens, int experts) {
  const float factor = alpha * *dy;
  for_warp_tokens(tokens, [&](int64_t t, int) {
    ExpertRow<kLane> row(logits + t * experts, experts);
    ExpertRow<kLane> d(weights + t % groups * experts, experts);
    d.each([&](float& x, int e) { x = e < experts ? factor * x : 0.0f; });
    if (score == RouterScore::kSoftmax) {
      row.softmax();
    } else {
      row.each([&](float& x, int) { x = single_score(x, score); });
    }
    ExpertRow<kLane> product = row;
#pragma unroll
    for (int i = 0; i < kLane; ++i) product.x[i] *= d.x[i];
    const float dot = product.sum();
    if (score == RouterScore::kSoftmax) {
#pragma unroll
      for (int i = 0; i < kLane; ++i) d.x[i] = row.x[i] * (d.x[i] - dot);
    } else {
      const float sum = row.sum() + kLeastSum;
      d.each([&](float& x, int e) {
        const float logit = e < experts ? logits[t * experts + e] : 0.0f;
        x = (x - dot / sum) / sum * single_derivative(logit, score);
      });
    }
    d.write(dlogits + t * experts);
  });
}

// 32 columns of a group by a block of 32 x 32 threads; a thread adds every 32nd row of the group.
__global__ void __launch_bounds__(kWarp* kWarp)
    sum_by_group_kernel(float* sums, const float* x, int64_t tokens, int groups, int experts) {
  __shared__ float parts[kWarp][kWarp + 1];
  const int e = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x);
  const int64_t group = blockIdx.y;
  float sum = 0;
  if (e < experts) {
    for (int64_t t = group + static_cast<int64_t>(threadIdx.y) * groups; t < tokens;
         t += int64_t{kWarp} * groups) {
      sum += x[t * experts + e];
    }
  }
  parts[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  const float total = warp_sum(parts[threadIdx.y][threadIdx.x]);
  const int own = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.y);
  if (threadIdx.x == 0 && own < experts) sums[group * experts + own] = total;
}

// Counts are whole numbers below 2^24: their sum does not depend on the order.
__global__ void __launch_bounds__(kThreads)
    count_by_group_kernel(float* counts, const int* ids, int64_t slots, int k, int groups,
                          int experts) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < slots;
       i += step) {
    if (ids[i] >= 0) atomicAdd(counts + i / k % groups * experts + ids[i], 1.0f);
  }
}

struct Jitter {
  float* y;
  const float* x;
  const float* noise;
  template <int N>
  __device__ void run(int64_t at) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[at + i] = (1.0f + noise[at + i]) * x[at + i];
  }
};

// The sum over one block of f(i) for i < n.
template <class F>
__device__ float sum_of(int64_t n, const F& f) {
  __shared__ float shared[kWarp];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += f(i);
  return block_sum(sum, shared);
}

__global__ void __launch_bounds__(1024)
    sum_of_products_kernel(float* y, const float* x, const float* z, int64_t n, float alpha) {
  const float sum = sum_of(n, [&](int64_t i) { return x[i] * z[i]; });
  if (threadIdx.x == 0) *y = alpha * sum;
}

__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }

template <int kLane, class T>
__device__ __forceinline__ T log_sum_of(const T* logits, int experts) {
  ExpertRow<kLane, T> row(logits, experts);
  const T best = row.highest();
  row.each([&](T& x, int) { x = exp_of(x - best); });
  return best + log_of(row.sum());
}

// One block: the order of the sum is fixed.
template <int kLane, class T>
__global__ void __launch_bounds__(1024)
    squared_log_sums_kernel(float* y, const T* logits, float alpha, int64_t tokens, int experts) {
  __shared__ T shared[kWarp];
  T sum = 0;
  for (int64_t t = threadIdx.x / kWarp; t < tokens; t += blockDim.x / kWarp) {
    const T log_sum = log_sum_of<kLane>(logits + t * experts, experts);
    if (lane_of_thread() == 0) sum += log_sum * log_sum;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *y = static_cast<float>(alpha * sum);
}

template <int kLane, class T>
__global__ void __launch_bounds__(kThreads)
    squared_log_sums_gradient_kernel(T* dlogits, const float* dy, const T* logits, float alpha,
                                     int64_t tokens, int experts) {
  for_warp_tokens(tokens, [&](int64_t t, int) {
    const T factor = 2.0f * alpha * *dy * log_sum_of<kLane>(logits + t * experts, experts);
    ExpertRow<kLane, T> row(logits + t * experts, experts);
    row.softmax();
    row.each([&](T& x, int) { x *= factor; });
    row.write(dlogits + t * experts);
  });
}

void expect_few(int64_t k, const RouterOptions& options) {
  expect_few_choices(k);
  if (options.num_groups > kMaxChoices) {
    throw Unsupported("a router on a GPU chooses from at most 32 groups of experts");
  }
}

}  // namespace

void choose_experts(TensorView ids, ConstView logits, ConstView bias, const RouterOptions& options,
                    Stream stream) {
  const int64_t tokens = logits.size(0);
  expect_few(ids.size(1), options);
  if (tokens == 0) return;
  with_logits(logits, [&]<int kLane, class T>() {
    choose_experts_kernel<kLane, T><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        ids.as<int32_t>(), logits.as<T>(), ChoiceRule(bias, options, ids.size(1)), tokens,
        count_of(logits.size(1)), count_of(ids.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void expert_weights_forward(TensorView weights, ConstView logits, ConstView ids,
                            const RouterOptions& options, Stream stream) {
  const int64_t tokens = logits.size(0);
  expect_few_choices(ids.size(1));
  if (tokens == 0) return;
  with_logits(logits, [&]<int kLane, class T>() {
    expert_weights_kernel<kLane, T><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        weights.as<float>(), logits.as<T>(), ids.as<int32_t>(), WeightRule(options, ids.size(1)),
        tokens, count_of(logits.size(1)), count_of(ids.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void expert_weights_backward(TensorView dlogits, ConstView dweights, ConstView logits,
                             ConstView ids, const RouterOptions& options, Stream stream) {
  const int64_t tokens = logits.size(0);
  expect_few_choices(ids.size(1));
  if (tokens == 0) return;
  with_logits(logits, [&]<int kLane, class T>() {
    expert_weights_gradient_kernel<kLane, T><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        dlogits.as<T>(), dweights.as<float>(), logits.as<T>(), ids.as<int32_t>(),
        WeightRule(options, ids.size(1)), tokens, count_of(logits.size(1)), count_of(ids.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void route_tokens(TensorView ids, TensorView weights, ConstView logits, ConstView bias,
                  const RouterOptions& options, Stream stream) {
  const int64_t tokens = logits.size(0), k = ids.size(1);
  expect_few(k, options);
  if (tokens == 0) return;
  with_lane_values(logits.size(1), [&]<int kLane>() {
    const auto kernel = route_tokens_kernel<kLane>;
    launch_overlapped(
        kernel,
        {.grid = dim3(token_blocks(tokens)),
         .block = dim3(kThreads),
         .overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device)},
        stream, ids.as<int32_t>(), weights.as<float>(), any_input(logits, "route_tokens"),
        ChoiceRule(bias, options, k), WeightRule(options, k), tokens, count_of(logits.size(1)),
        count_of(k));
  });
}

void router_scores_forward(TensorView scores, ConstView logits, RouterScore score, Stream stream) {
  const int64_t tokens = logits.size(0);
  if (tokens == 0) return;
  with_lane_values(logits.size(1), [&]<int kLane>() {
    router_scores_kernel<kLane><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        scores.as<float>(), logits.as<float>(), score, tokens, count_of(logits.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void router_scores_backward(TensorView dlogits, ConstView dy, ConstView weights, ConstView logits,
                            RouterScore score, float alpha, Stream stream) {
  const int64_t tokens = logits.size(0);
  if (tokens == 0) return;
  with_lane_values(logits.size(1), [&]<int kLane>() {
    router_scores_gradient_kernel<kLane><<<token_blocks(tokens), kThreads, 0, native(stream)>>>(
        dlogits.as<float>(), dy.as<float>(), weights.as<float>(), weights.size(0),
        logits.as<float>(), score, alpha, tokens, count_of(logits.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void sum_by_group(TensorView sums, ConstView x, Stream stream) {
  const dim3 grid(static_cast<unsigned>((x.size(1) + kWarp - 1) / kWarp),
                  static_cast<unsigned>(sums.size(0)));
  sum_by_group_kernel<<<grid, dim3(kWarp, kWarp), 0, native(stream)>>>(
      sums.as<float>(), x.as<float>(), x.size(0), count_of(sums.size(0)), count_of(x.size(1)));
  MG_CUDA(cudaGetLastError());
}

void count_by_group(TensorView counts, ConstView ids, Stream stream) {
  MG_CUDA(cudaMemsetAsync(counts.data, 0, static_cast<size_t>(counts.bytes()), native(stream)));
  if (ids.numel() == 0) return;
  count_by_group_kernel<<<blocks_for(ids.numel(), kThreads), kThreads, 0, native(stream)>>>(
      counts.as<float>(), ids.as<int32_t>(), ids.numel(), count_of(ids.size(1)),
      count_of(counts.size(0)), count_of(counts.size(1)));
  MG_CUDA(cudaGetLastError());
}

void jitter(TensorView y, ConstView x, ConstView noise, Stream stream) {
  for_each_element(y.numel(), false, Jitter{y.as<float>(), x.as<float>(), noise.as<float>()},
                   stream);
}

void sum_of_products(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  sum_of_products_kernel<<<1, 1024, 0, native(stream)>>>(y.as<float>(), x.as<float>(),
                                                         z.as<float>(), x.numel(), alpha);
  MG_CUDA(cudaGetLastError());
}

void squared_log_sums_forward(TensorView y, ConstView logits, float alpha, Stream stream) {
  with_logits(logits, [&]<int kLane, class T>() {
    squared_log_sums_kernel<kLane, T><<<1, 1024, 0, native(stream)>>>(
        y.as<float>(), logits.as<T>(), alpha, logits.size(0), count_of(logits.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

void squared_log_sums_backward(TensorView dlogits, ConstView dy, ConstView logits, float alpha,
                               Stream stream) {
  if (logits.size(0) == 0) return;
  with_logits(logits, [&]<int kLane, class T>() {
    squared_log_sums_gradient_kernel<kLane, T>
        <<<token_blocks(logits.size(0)), kThreads, 0, native(stream)>>>(
            dlogits.as<T>(), dy.as<float>(), logits.as<T>(), alpha, logits.size(0),
            count_of(logits.size(1)));
  });
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
