#include "megatron/kernels/cuda/optimizer_update.cuh"

// Adam with moments in fp8 (kernels/fp8_moment.h). 16 adjacent threads share a quantization block
// of 64 elements and reduce its amax before they write its codes.
namespace megatron::kernels::cuda {
namespace {

constexpr int kElements = 4;  // of a thread
constexpr int kBlockThreads = static_cast<int>(kMomentBlock) / kElements;

// A moment in fp8; null codes if it has another dtype.
struct Fp8View {
  uint8_t* codes = nullptr;
  uint8_t* exponents = nullptr;
  uint32_t seed = 0;
};

Fp8View view_of(const Moment& moment, uint32_t seed = 0) {
  if (!moment.is_fp8()) return {};
  return {static_cast<uint8_t*>(moment.elements.data), moment.exponents.as<uint8_t>(), seed};
}

// Maximum over the threads that share a quantization block.
__device__ float block_amax(float x) {
  const unsigned mask = 0xffffu << (threadIdx.x & 16u);
#pragma unroll
  for (int i = kBlockThreads / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(mask, x, i));
  return x;
}

// Dequantizes elements [at, at + count); y[i] = 0 beyond them.
__device__ void decode(float (&y)[kElements], const Fp8View& x, bool is_root, int64_t at,
                       int count) {
  const uint8_t exponent = x.exponents[at / kMomentBlock];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const float value = i < count ? fp8_moment_value(x.codes[at + i], exponent) : 0.0f;
    y[i] = is_root ? value * value : value;
  }
}

// Quantizes elements [at, at + count). All threads of a quantization block call it, also those with
// a count of 0. Rounds stochastically with the block's key, or to nearest.
__device__ void encode(const Fp8View& y, bool is_root, int64_t at, int count,
                       const float (&x)[kElements], bool is_random, uint32_t key) {
  float values[kElements];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    values[i] = is_root ? sqrtf(x[i]) : x[i];
    if (i < count) largest = fmaxf(largest, fabsf(values[i]));
  }
  const uint8_t exponent = block_exponent(block_amax(largest));
  if (at % kMomentBlock == 0) y.exponents[at / kMomentBlock] = exponent;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i >= count) continue;
    const auto element = static_cast<uint32_t>((at + i) % kMomentBlock);
    const uint32_t random = is_random ? rounding_bits(key, element, y.seed) : kRoundToNearest;
    y.codes[at + i] = fp8_moment_code(values[i], exponent, is_root, random);
  }
}

// Calls f(at, count) for the elements of this thread. All threads that share a quantization block
// make the same number of calls.
template <class F>
__device__ void for_each_part(int64_t n, const F& f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kElements;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t in_block = threadIdx.x % kBlockThreads * kElements;
  for (int64_t at = thread * kElements; at - in_block < n; at += step) {
    const int64_t left = n - at;
    f(at, left < 0 ? 0 : left < kElements ? static_cast<int>(left) : kElements);
  }
}

__global__ void __launch_bounds__(kThreads)
    adam_fp8_kernel(const __grid_constant__ Update<AdamRule> u, Fp8View first, Fp8View second,
                    int64_t n) {
  if (u.step->is_skipped != 0) return;
  const auto grad_scale = static_cast<float>(u.step->grad_scale);
  const Fp8View fp8[AdamRule::kBuffers] = {first, second};
  for_each_part(n, [&](int64_t at, int count) {
    float state[AdamRule::kBuffers][kElements] = {};
#pragma unroll
    for (int b = 0; b < AdamRule::kBuffers; ++b) {
      if (fp8[b].codes != nullptr && count > 0) decode(state[b], fp8[b], b == 1, at, count);
    }
    // All elements of a block lie in one range: ranges end at block boundaries.
    const int64_t range = count > 0 ? range_at(u.ranges, at) : 0;
    const int32_t group = u.ranges.groups[range];
    const int64_t begin = range == 0 ? 0 : u.ranges.ends[range - 1];
    const uint32_t key = static_cast<uint32_t>(u.ranges.keys[range]) +
                         static_cast<uint32_t>((at - begin) / kMomentBlock);
    for (int i = 0; i < count; ++i) {
      float w[1], g[1], element_state[AdamRule::kBuffers];
      load_main(w, u, at + i);
      u.grad.read(g, at + i);
#pragma unroll
      for (int b = 0; b < AdamRule::kBuffers; ++b) {
        element_state[b] = state[b][i];
        if (fp8[b].codes != nullptr) continue;
        float value[1];
        u.buffers[b].read(value, at + i);
        const bool is_code = u.buffers[b].dtype == DType::kFloat16;
        element_state[b] = is_code ? decoded(value[0], u.codes[b]) : value[0];
      }
      AdamRule::update(w[0], element_state, grad_scale * g[0], u.groups[group]);
      store_main(u, at + i, w);
#pragma unroll
      for (int b = 0; b < AdamRule::kBuffers; ++b) {
        state[b][i] = element_state[b];
        if (fp8[b].codes != nullptr) continue;
        const bool is_code = u.buffers[b].dtype == DType::kFloat16;
        const float value[1] = {is_code ? encoded(element_state[b], u.codes[b]) : element_state[b]};
        u.buffers[b].write(at + i, value);
      }
    }
#pragma unroll
    for (int b = 0; b < AdamRule::kBuffers; ++b) {
      if (fp8[b].codes != nullptr) encode(fp8[b], b == 1, at, count, state[b], true, key);
    }
  });
}

__global__ void __launch_bounds__(kThreads)
    decode_fp8_kernel(float* y, Fp8View x, bool is_root, int64_t n) {
  for_each_part(n, [&](int64_t at, int count) {
    if (count == 0) return;
    float values[kElements];
    decode(values, x, is_root, at, count);
    for (int i = 0; i < count; ++i) y[at + i] = values[i];
  });
}

__global__ void __launch_bounds__(kThreads)
    encode_fp8_kernel(Fp8View y, const float* x, bool is_root, int64_t n) {
  for_each_part(n, [&](int64_t at, int count) {
    float values[kElements] = {};
    for (int i = 0; i < count; ++i) values[i] = x[at + i];
    encode(y, is_root, at, count, values, false, 0);
  });
}

}  // namespace

void update_fp8(const Update<AdamRule>& u, const Fp8Moments& moments, int64_t n, Stream stream) {
  if (n == 0) return;
  adam_fp8_kernel<<<blocks_for(n, kThreads * kElements), kThreads, 0, native(stream)>>>(
      u, view_of(moments.exp_avg, moments.seed), view_of(moments.exp_avg_sq, ~moments.seed), n);
  MG_CUDA(cudaGetLastError());
}

void decode_fp8(TensorView moment, const Moment& codes, bool is_root, Stream stream) {
  const int64_t n = moment.numel();
  if (n == 0) return;
  decode_fp8_kernel<<<blocks_for(n, kThreads * kElements), kThreads, 0, native(stream)>>>(
      moment.as<float>(), view_of(codes), is_root, n);
  MG_CUDA(cudaGetLastError());
}

void encode_fp8(const Moment& codes, ConstView moment, bool is_root, Stream stream) {
  const int64_t n = moment.numel();
  if (n == 0) return;
  encode_fp8_kernel<<<blocks_for(n, kThreads * kElements), kThreads, 0, native(stream)>>>(
      view_of(codes), moment.as<float>(), is_root, n);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
