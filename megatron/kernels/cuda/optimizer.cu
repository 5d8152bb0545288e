#include "megatron/kernels/optimizer.h"

#include <algorithm>

#include "megatron/kernels/cuda/optimizer_update.cuh"

namespace megatron::kernels::cuda {
namespace {

template <class Rule, int N>
__device__ void update_elements(const Update<Rule>& u, float grad_scale, int64_t at) {
  float w[N], g[N], state[Rule::kBuffers][N];
  load_main(w, u, at);
  u.grad.read(g, at);
#pragma unroll
  for (int b = 0; b < Rule::kBuffers; ++b) u.buffers[b].read(state[b], at);

  int64_t range = range_at(u.ranges, at);
  int64_t end = u.ranges.ends[range];
  typename Rule::Floats numbers = u.groups[u.ranges.groups[range]];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    while (at + i >= end) {  // the vector crosses into the next range
      end = u.ranges.ends[++range];
      numbers = u.groups[u.ranges.groups[range]];
    }
    float element_state[Rule::kBuffers];
#pragma unroll
    for (int b = 0; b < Rule::kBuffers; ++b) {
      const bool is_code = u.buffers[b].dtype == DType::kFloat16;
      element_state[b] = is_code ? decoded(state[b][i], u.codes[b]) : state[b][i];
    }
    Rule::update(w[i], element_state, grad_scale * g[i], numbers);
#pragma unroll
    for (int b = 0; b < Rule::kBuffers; ++b) {
      const bool is_code = u.buffers[b].dtype == DType::kFloat16;
      state[b][i] = is_code ? encoded(element_state[b], u.codes[b]) : element_state[b];
    }
  }

  store_main(u, at, w);
#pragma unroll
  for (int b = 0; b < Rule::kBuffers; ++b) u.buffers[b].write(at, state[b]);
}

template <class Rule, int N>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ Update<Rule> u, int64_t n) {
  if (u.step->is_skipped != 0) return;
  const auto grad_scale = static_cast<float>(u.step->grad_scale);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t vectors = n / N;
  for (int64_t i = thread; i < vectors; i += step) update_elements<Rule, N>(u, grad_scale, i * N);
  if constexpr (N > 1) {
    for (int64_t i = vectors * N + thread; i < n; i += step)
      update_elements<Rule, 1>(u, grad_scale, i);
  }
}

template <class Rule>
void run(const Update<Rule>& u, int64_t n, Stream stream) {
  if (n == 0) return;
  const bool aligned = is_aligned(u.model.data) && is_aligned(u.main) && is_aligned(u.narrow) &&
                       is_aligned(u.remainder) && is_aligned(u.grad.data) &&
                       std::all_of(u.buffers, u.buffers + Rule::kBuffers,
                                   [](const AnyOutput& buffer) { return is_aligned(buffer.data); });
  if (aligned) {
    update_kernel<Rule, kStateVector>
        <<<blocks_for(n, kThreads * kStateVector), kThreads, 0, native(stream)>>>(u, n);
  } else {
    update_kernel<Rule, 1><<<blocks_for(n, kThreads), kThreads, 0, native(stream)>>>(u, n);
  }
  MG_CUDA(cudaGetLastError());
}

struct JoinMainParams {
  float* main;
  const BFloat16* model;
  const int16_t* remainder;

  template <int N>
  __device__ void run(int64_t at) const {
    float w[N];
    load_joined(w, model + at, remainder + at);
    store(main + at, w);
  }
};

struct SplitMainParams {
  int16_t* remainder;
  const float* main;
  const BFloat16* model;

  template <int N>
  __device__ void run(int64_t at) const {
    float w[N];
    load(w, main + at);
    const auto pack = *reinterpret_cast<const Pack<BFloat16, N>*>(model + at);
    store_remainders(remainder + at, w, pack.elements);
  }
};

struct DecodeMoment {
  float* y;
  const Float16* x;
  MomentCode code;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
    load(values, x + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = decoded(values[i], code);
    store(y + at, values);
  }
};

struct EncodeMoment {
  Float16* y;
  const float* x;
  MomentCode code;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
    load(values, x + at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = encoded(values[i], code);
    store(y + at, values);
  }
};

struct Measure {
  double squares;
  double zeros;
};

// Elements [begin, end) of x. Reads whole vectors of N elements, except where one crosses the end
// of x.
template <int N>
__device__ Measure measured(const AnyInput& x, int64_t begin, int64_t end, int64_t n) {
  Measure sum = {0.0, 0.0};
  int32_t zeros = 0;
  for (int64_t i = begin / N + threadIdx.x; i * N < end; i += blockDim.x) {
    const int64_t at = i * N;
    float values[N];
    if (at + N <= n) {
      x.read(values, at);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float value[1] = {0.0f};
        if (at + j < n) x.read(value, at + j);
        values[j] = value[0];
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (at + j < begin || at + j >= end) continue;
      const double value = values[j];
      sum.squares += value * value;
      zeros += values[j] == 0.0f ? 1 : 0;
    }
  }
  sum.zeros = zeros;
  return sum;
}

// Block c measures chunk c into partials[c, group].
template <int N>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(Measure* partials, AnyInput x, Ranges ranges, int64_t n, int64_t num_groups) {
  __shared__ double shared[kWarp];
  Measure* const group_sums = partials + static_cast<int64_t>(blockIdx.x) * num_groups;
  for (int64_t group = threadIdx.x; group < num_groups; group += blockDim.x) {
    group_sums[group] = {0.0, 0.0};
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kMeasureChunk;
  const int64_t last = min(n, first + kMeasureChunk);
  int64_t range = range_at(ranges, first);
  for (int64_t begin = first; begin < last; ++range) {
    const int64_t end = min(last, ranges.ends[range]);
    if (end <= begin) continue;  // an empty range
    const Measure mine = measured<N>(x, begin, end, n);
    const double squares = block_sum(mine.squares, shared);
    const double zeros = block_sum(mine.zeros, shared);
    if (threadIdx.x == 0) {
      Measure& sum = group_sums[ranges.groups[range]];
      sum.squares += squares;
      sum.zeros += zeros;
    }
    begin = end;
  }
}

// Block g sums the partial results of group g.
__global__ void __launch_bounds__(kThreads)
    sum_measures_kernel(Measure* y, const Measure* partials, int64_t chunks) {
  __shared__ double shared[kWarp];
  Measure sum = {0.0, 0.0};
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
    const Measure& partial = partials[chunk * gridDim.x + blockIdx.x];
    sum.squares += partial.squares;
    sum.zeros += partial.zeros;
  }
  const double squares = block_sum(sum.squares, shared);
  const double zeros = block_sum(sum.zeros, shared);
  if (threadIdx.x == 0) y[blockIdx.x] = {squares, zeros};
}

__global__ void __launch_bounds__(kThreads)
    find_not_finite_kernel(StepState* state, AnyInput x, Ranges ranges, int64_t n) {
  if (state->is_skipped == 0) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    float value[1];
    x.read(value, i);
    if (isfinite(value[0])) continue;
    const int64_t group = ranges.groups[range_at(ranges, i)];
    // The minimum does not depend on the order.
    atomicMin(reinterpret_cast<long long*>(&state->first_not_finite),
              static_cast<long long>(group));
  }
}

}  // namespace

void adam(TensorView model, TensorView main, const Moment& exp_avg, const Moment& exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream stream) {
  auto u = update_of<AdamRule>(model, main, grad, ranges, numbers, state, "adam");
  const Moment* const moments[] = {&exp_avg, &exp_avg_sq};
  const auto scale = numbers.empty() ? 1.0f : static_cast<float>(numbers[0].fp16_scale);
  for (int b = 0; b < AdamRule::kBuffers; ++b) {
    u.codes[b] = {.scale = scale, .is_root = b == 1};
    if (!moments[b]->is_fp8()) u.buffers[b] = any_output(moments[b]->elements, "adam: moment");
  }
  if (exp_avg.is_fp8() || exp_avg_sq.is_fp8()) {
    const uint32_t seed = numbers.empty() ? 0 : numbers[0].rounding_seed;
    return update_fp8(u, {exp_avg, exp_avg_sq, seed}, main.numel(), stream);
  }
  run(u, main.numel(), stream);
}

void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, ConstView state,
                  Stream stream) {
  expect_shape(momentum_buffer.shape, main.shape, "sgd_momentum: momentum_buffer");
  auto u = update_of<SgdRule>(model, main, grad, ranges, numbers, state, "sgd_momentum");
  u.buffers[0] = any_output(momentum_buffer, "sgd_momentum: momentum_buffer");
  run(u, main.numel(), stream);
}

void lion(TensorView model, TensorView main, const Moment& exp_avg, ConstView grad,
          const GroupRanges& ranges, std::span<const LionNumbers> numbers, ConstView state,
          Stream stream) {
  auto u = update_of<LionRule>(model, main, grad, ranges, numbers, state, "lion");
  u.codes[0] = {.scale = numbers.empty() ? 1.0f : static_cast<float>(numbers[0].fp16_scale)};
  u.buffers[0] = any_output(exp_avg.elements, "lion: exp_avg");
  run(u, main.numel(), stream);
}

void join_main_params(TensorView main, ConstView model, ConstView remainder, Stream stream) {
  const JoinMainParams f = {main.as<float>(), model.as<BFloat16>(), remainder.as<int16_t>()};
  const bool aligned = is_aligned(f.main) && is_aligned(f.model) && is_aligned(f.remainder);
  for_each_element(main.numel(), aligned, f, stream);
}

void split_main_params(TensorView remainder, ConstView main, ConstView model, Stream stream) {
  const SplitMainParams f = {remainder.as<int16_t>(), main.as<float>(), model.as<BFloat16>()};
  const bool aligned = is_aligned(f.main) && is_aligned(f.model) && is_aligned(f.remainder);
  for_each_element(main.numel(), aligned, f, stream);
}

void decode_moment(TensorView moment, const Moment& codes, const MomentCode& code, Stream stream) {
  if (codes.is_fp8()) return decode_fp8(moment, codes, code.is_root, stream);
  const DecodeMoment f = {moment.as<float>(), codes.elements.as<Float16>(), code};
  for_each_element(moment.numel(), is_aligned(f.y) && is_aligned(f.x), f, stream);
}

void encode_moment(const Moment& codes, ConstView moment, const MomentCode& code, Stream stream) {
  if (codes.is_fp8()) return encode_fp8(codes, moment, code.is_root, stream);
  const EncodeMoment f = {codes.elements.as<Float16>(), moment.as<float>(), code};
  for_each_element(moment.numel(), is_aligned(f.y) && is_aligned(f.x), f, stream);
}

void squares_and_zeros(TensorView y, ConstView x, const GroupRanges& ranges, TensorView scratch,
                       Stream stream) {
  const int64_t num_groups = y.size(0);
  const int64_t chunks = scratch.size(0);
  const AnyInput in = any_input(x, "squares_and_zeros");
  auto* const partials = reinterpret_cast<Measure*>(scratch.as<double>());
  auto* const sums = reinterpret_cast<Measure*>(y.as<double>());
  if (num_groups == 0) return;
  if (chunks > 0) {
    const auto blocks = static_cast<unsigned>(chunks);
    if (is_aligned(x.data)) {
      measure_kernel<kVector><<<blocks, kThreads, 0, native(stream)>>>(
          partials, in, ranges_in(ranges), x.numel(), num_groups);
    } else {
      measure_kernel<1><<<blocks, kThreads, 0, native(stream)>>>(partials, in, ranges_in(ranges),
                                                                 x.numel(), num_groups);
    }
    MG_CUDA(cudaGetLastError());
  }
  sum_measures_kernel<<<static_cast<unsigned>(num_groups), kThreads, 0, native(stream)>>>(
      sums, partials, chunks);
  MG_CUDA(cudaGetLastError());
}

void find_not_finite(TensorView state, ConstView x, const GroupRanges& ranges, Stream stream) {
  const int64_t n = x.numel();
  if (n == 0) return;
  find_not_finite_kernel<<<blocks_for(n, kThreads), kThreads, 0, native(stream)>>>(
      reinterpret_cast<StepState*>(state.as<uint8_t>()), any_input(x, "find_not_finite"),
      ranges_in(ranges), n);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
