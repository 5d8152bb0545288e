#include "megatron/kernels/optimizer.h"

#include <algorithm>
#include <string>

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/main_param.h"

namespace megatron::kernels::cuda {
namespace {

// Elements of a thread: one 16-byte access of fp32 state.
constexpr int kStateVector = 4;
// Groups whose values are passed as a kernel argument.
constexpr size_t kMaxGroups = 64;

struct Ranges {
  const int64_t* ends;
  const int32_t* groups;
  int64_t count;
};

Ranges ranges_in(const GroupRanges& ranges) {
  return {ranges.ends.as<int64_t>(), ranges.groups.as<int32_t>(), ranges.ends.numel()};
}

// The range that holds element `at`.
__device__ int64_t range_at(const Ranges& ranges, int64_t at) {
  int64_t low = 0;
  int64_t high = ranges.count - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ranges.ends[middle] <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

struct AdamFloats {
  float lr, beta1, beta2, rest1, rest2, eps, weight_decay, unbias1, unbias2;
};

AdamFloats floats_of(const AdamNumbers& numbers) {
  return {static_cast<float>(numbers.lr),
          static_cast<float>(numbers.beta1),
          static_cast<float>(numbers.beta2),
          static_cast<float>(1.0 - numbers.beta1),
          static_cast<float>(1.0 - numbers.beta2),
          static_cast<float>(numbers.eps),
          static_cast<float>(numbers.weight_decay),
          static_cast<float>(1.0 / numbers.bias_correction1),
          static_cast<float>(1.0 / numbers.bias_correction2)};
}

struct SgdFloats {
  float lr, momentum, weight_decay;
};

SgdFloats floats_of(const SgdNumbers& numbers) {
  return {static_cast<float>(numbers.lr), static_cast<float>(numbers.momentum),
          static_cast<float>(numbers.weight_decay)};
}

// The state of one element and its update. A rule has kBuffers buffers besides the weight.
struct AdamRule {
  using Floats = AdamFloats;
  static constexpr int kBuffers = 2;

  __device__ static void update(float& w, float (&state)[kBuffers], float g, const Floats& c) {
    const float m = c.beta1 * state[0] + c.rest1 * g;
    const float v = c.beta2 * state[1] + c.rest2 * g * g;
    const float step = m * c.unbias1 / (sqrtf(v * c.unbias2) + c.eps);
    state[0] = m;
    state[1] = v;
    w -= c.lr * (step + c.weight_decay * w);
  }
};

struct SgdRule {
  using Floats = SgdFloats;
  static constexpr int kBuffers = 1;

  __device__ static void update(float& w, float (&state)[kBuffers], float g, const Floats& c) {
    state[0] = c.momentum * state[0] + g + c.weight_decay * w;
    w -= c.lr * state[0];
  }
};

// w[i] of bf16 parameters and their remainders.   REQUIRES: as for load()
template <int N>
__device__ __forceinline__ void load_joined(float (&w)[N], const BFloat16* p, const int16_t* r) {
  const auto high = *reinterpret_cast<const Pack<BFloat16, N>*>(p);
  const auto low = *reinterpret_cast<const Pack<int16_t, N>*>(r);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    w[i] = __uint_as_float(joined(high.elements[i].bits, low.elements[i]));
  }
}

// The remainders of w over p.   REQUIRES: as for load()
template <int N>
__device__ __forceinline__ void store_remainders(int16_t* r, const float (&w)[N],
                                                 const BFloat16 (&p)[N]) {
  Pack<int16_t, N> low;
#pragma unroll
  for (int i = 0; i < N; ++i) low.elements[i] = remainder_of(__float_as_uint(w[i]), p[i].bits);
  *reinterpret_cast<Pack<int16_t, N>*>(r) = low;
}

template <class Rule>
struct Update {
  AnyOutput model;     // data is null if main is the model's own
  float* main;         // null: see remainder
  int16_t* remainder;  // of the main parameters over a bf16 model
  AnyOutput buffers[Rule::kBuffers];
  MomentCode codes[Rule::kBuffers];  // of buffers in fp16
  AnyInput grad;
  Ranges ranges;
  const StepState* step;
  typename Rule::Floats groups[kMaxGroups];
};

template <class Rule, int N>
__device__ __forceinline__ void load_main(float (&w)[N], const Update<Rule>& u, int64_t at) {
  if (u.main != nullptr) {
    load(w, u.main + at);
  } else {
    load_joined(w, static_cast<const BFloat16*>(u.model.data) + at, u.remainder + at);
  }
}

template <class Rule, int N>
__device__ __forceinline__ void store_main(const Update<Rule>& u, int64_t at, const float (&w)[N]) {
  if (u.model.data != nullptr) u.model.write(at, w);
  if (u.main != nullptr) {
    store(u.main + at, w);
    return;
  }
  BFloat16 p[N];
#pragma unroll
  for (int i = 0; i < N; ++i) p[i] = from_float<BFloat16>(w[i]);
  store_remainders(u.remainder + at, w, p);
}

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
    float of_element[Rule::kBuffers];
#pragma unroll
    for (int b = 0; b < Rule::kBuffers; ++b) {
      const bool is_code = u.buffers[b].dtype == DType::kFloat16;
      of_element[b] = is_code ? decoded(state[b][i], u.codes[b]) : state[b][i];
    }
    Rule::update(w[i], of_element, grad_scale * g[i], numbers);
#pragma unroll
    for (int b = 0; b < Rule::kBuffers; ++b) {
      const bool is_code = u.buffers[b].dtype == DType::kFloat16;
      state[b][i] = is_code ? encoded(of_element[b], u.codes[b]) : of_element[b];
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

template <class Rule, class Numbers>
Update<Rule> update_of(TensorView model, TensorView main, ConstView grad, const GroupRanges& ranges,
                       std::span<const Numbers> numbers, ConstView state, const char* who) {
  expect_shape(state.shape, {kStepStateBytes}, who);
  expect_shape(grad.shape, main.shape, who);
  if (!model.is_null()) expect_shape(model.shape, main.shape, who);
  if (numbers.size() > kMaxGroups) {
    throw Unsupported(std::string(who) + ": " + std::to_string(numbers.size()) +
                      " parameter groups; at most " + std::to_string(kMaxGroups) +
                      " are served on CUDA");
  }
  Update<Rule> u{};
  if (!model.is_null()) u.model = any_output(model, who);
  if (main.dtype == DType::kFloat32) {
    u.main = main.as<float>();
  } else {
    u.remainder = main.as<int16_t>();
  }
  u.grad = any_input(grad, who);
  u.ranges = ranges_in(ranges);
  u.step = reinterpret_cast<const StepState*>(state.as<uint8_t>());
  for (size_t i = 0; i < numbers.size(); ++i) u.groups[i] = floats_of(numbers[i]);
  return u;
}

template <class Rule>
void run(const Update<Rule>& u, int64_t n, Stream stream) {
  if (n == 0) return;
  const bool aligned = is_aligned(u.model.data) && is_aligned(u.main) && is_aligned(u.remainder) &&
                       is_aligned(u.grad.data) &&
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
  Measure* const of_group = partials + static_cast<int64_t>(blockIdx.x) * num_groups;
  for (int64_t group = threadIdx.x; group < num_groups; group += blockDim.x) {
    of_group[group] = {0.0, 0.0};
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
      Measure& sum = of_group[ranges.groups[range]];
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

void adam(TensorView model, TensorView main, TensorView exp_avg, TensorView exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream stream) {
  expect_shape(exp_avg.shape, main.shape, "adam: exp_avg");
  expect_shape(exp_avg_sq.shape, main.shape, "adam: exp_avg_sq");
  auto u = update_of<AdamRule>(model, main, grad, ranges, numbers, state, "adam");
  u.buffers[0] = any_output(exp_avg, "adam: exp_avg");
  u.buffers[1] = any_output(exp_avg_sq, "adam: exp_avg_sq");
  const auto scale = numbers.empty() ? 1.0f : static_cast<float>(numbers[0].fp16_scale);
  u.codes[0] = {.scale = scale};
  u.codes[1] = {.scale = scale, .is_root = true};
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

void decode_moment(TensorView moment, ConstView codes, const MomentCode& code, Stream stream) {
  const DecodeMoment f = {moment.as<float>(), codes.as<Float16>(), code};
  for_each_element(moment.numel(), is_aligned(f.y) && is_aligned(f.x), f, stream);
}

void encode_moment(TensorView codes, ConstView moment, const MomentCode& code, Stream stream) {
  const EncodeMoment f = {codes.as<Float16>(), moment.as<float>(), code};
  for_each_element(codes.numel(), is_aligned(f.y) && is_aligned(f.x), f, stream);
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
