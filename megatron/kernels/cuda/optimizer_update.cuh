#pragma once

#include <string>

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/main_param.h"
#include "megatron/kernels/optimizer.h"

// Shared parts of the optimizer kernels: ranges of parameter groups, the update rules, and main
// parameters in both storage forms (fp32, or bf16 with 16-bit remainders).
namespace megatron::kernels::cuda {

// Elements of a thread: one 16-byte access of fp32 state.
inline constexpr int kStateVector = 4;
// Groups whose values are passed as a kernel argument.
inline constexpr size_t kMaxGroups = 64;

struct Ranges {
  const int64_t* ends;
  const int32_t* groups;
  int64_t count;
  const int32_t* keys;  // null: none
};

inline Ranges ranges_in(const GroupRanges& ranges) {
  return {ranges.ends.as<int64_t>(), ranges.groups.as<int32_t>(), ranges.ends.numel(),
          ranges.keys.data == nullptr ? nullptr : ranges.keys.as<int32_t>()};
}

// The first of `count` rising ends beyond `at`.
__device__ inline int64_t end_beyond(const int64_t* ends, int64_t count, int64_t at) {
  int64_t low = 0;
  int64_t high = count - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ends[middle] <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The range that holds element `at`.
__device__ inline int64_t range_at(const Ranges& ranges, int64_t at) {
  return end_beyond(ranges.ends, ranges.count, at);
}

// RoundingRanges on the device.
struct Rounding {
  const int64_t* ends;
  const RoundingPlace* places;
  int64_t count;
  uint32_t step;
};

inline Rounding rounding_in(const RoundingRanges& ranges) {
  return {ranges.ends.as<int64_t>(),
          reinterpret_cast<const RoundingPlace*>(ranges.places.as<int64_t>()), ranges.ends.numel(),
          ranges.step};
}

struct AdamFloats {
  float lr, beta1, beta2, rest1, rest2, eps, weight_decay, unbias1, unbias2;
};

inline AdamFloats floats_of(const AdamNumbers& numbers) {
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

inline SgdFloats floats_of(const SgdNumbers& numbers) {
  return {static_cast<float>(numbers.lr), static_cast<float>(numbers.momentum),
          static_cast<float>(numbers.weight_decay)};
}

struct LionFloats {
  float lr, beta1, beta2, rest1, rest2, weight_decay;
};

inline LionFloats floats_of(const LionNumbers& numbers) {
  return {static_cast<float>(numbers.lr),          static_cast<float>(numbers.beta1),
          static_cast<float>(numbers.beta2),       static_cast<float>(1.0 - numbers.beta1),
          static_cast<float>(1.0 - numbers.beta2), static_cast<float>(numbers.weight_decay)};
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

struct LionRule {
  using Floats = LionFloats;
  static constexpr int kBuffers = 1;

  __device__ static void update(float& w, float (&state)[kBuffers], float g, const Floats& c) {
    const float m = c.beta1 * state[0] + c.rest1 * g;
    const float step = m > 0.0f ? 1.0f : m < 0.0f ? -1.0f : m;  // NaN stays NaN
    state[0] = c.beta2 * state[0] + c.rest2 * g;
    w -= c.lr * (step + c.weight_decay * w);
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

// Rounds w[i] at random.   REQUIRES: as for store()
template <int N>
__device__ __forceinline__ void round_at_random(BFloat16 (&p)[N], const float (&w)[N],
                                                const Rounding& rounding, int64_t at) {
  int64_t range = end_beyond(rounding.ends, rounding.count, at);
  RoundingPlace place = rounding.places[range];
  RoundingBits bits(place.key, rounding.step);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    while (at + i >= rounding.ends[range]) {  // the vector crosses into the next range
      place = rounding.places[++range];
      bits = RoundingBits(place.key, rounding.step);
    }
    p[i] = rounded_at_random(__float_as_uint(w[i]), bits.of(place.element(at + i)));
  }
}

template <class Rule>
struct Update {
  AnyOutput model;     // data is null if main is the model's own
  float* main;         // null: see narrow
  BFloat16* narrow;    // null: see remainder
  int16_t* remainder;  // of the main parameters over a bf16 model
  Rounding rounding;   // of narrow main parameters
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
  } else if (u.narrow != nullptr) {
    load(w, u.narrow + at);
  } else {
    load_joined(w, static_cast<const BFloat16*>(u.model.data) + at, u.remainder + at);
  }
}

template <class Rule, int N>
__device__ __forceinline__ void store_main(const Update<Rule>& u, int64_t at, const float (&w)[N]) {
  BFloat16 p[N];
  if (u.narrow != nullptr) {
    Pack<BFloat16, N> pack;
    round_at_random(pack.elements, w, u.rounding, at);
    *reinterpret_cast<Pack<BFloat16, N>*>(u.narrow + at) = pack;
    if (u.model.data == nullptr) return;
    *reinterpret_cast<Pack<BFloat16, N>*>(static_cast<BFloat16*>(u.model.data) + at) = pack;
    return;
  }
  if (u.model.data != nullptr) u.model.write(at, w);
  if (u.main != nullptr) {
    store(u.main + at, w);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) p[i] = from_float<BFloat16>(w[i]);
  store_remainders(u.remainder + at, w, p);
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
  } else if (main.dtype == DType::kBFloat16) {
    u.narrow = main.as<BFloat16>();
    u.rounding = rounding_in(ranges.rounding);
  } else {
    u.remainder = main.as<int16_t>();
  }
  u.grad = any_input(grad, who);
  u.ranges = ranges_in(ranges);
  u.step = reinterpret_cast<const StepState*>(state.as<uint8_t>());
  for (size_t i = 0; i < numbers.size(); ++i) u.groups[i] = floats_of(numbers[i]);
  return u;
}

// Moments of which one or both are in fp8; the seed is that of all groups.
struct Fp8Moments {
  Moment exp_avg;
  Moment exp_avg_sq;
  uint32_t seed = 0;
};
// The update with them (adam_fp8.cu); u.buffers has the moment that is not in fp8.
void update_fp8(const Update<AdamRule>& u, const Fp8Moments& moments, int64_t n, Stream stream);
void decode_fp8(TensorView moment, const Moment& codes, bool is_root, Stream stream);
void encode_fp8(const Moment& codes, ConstView moment, bool is_root, Stream stream);

}  // namespace megatron::kernels::cuda
