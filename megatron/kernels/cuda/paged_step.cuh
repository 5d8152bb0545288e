#pragma once

#include <type_traits>

#include "megatron/kernels/cuda/attention_tile.cuh"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/paged_problem.cuh"

// A step of paged attention on tensor cores: 16 keys and their values in shared memory, in the
// model's type T or in FP8 (S), and the register fragments of a lane.
//
// FP8 keys and values stay FP8 in shared memory and are upcast to T, exactly, when fragments are
// loaded. Their scales multiply scores and probabilities.
namespace megatron::kernels::cuda {

inline constexpr int kStep = kUnit;   // keys of a step
inline constexpr int kTileHeads = 8;  // columns of a product

template <class S>
inline constexpr bool kIsFp8 = std::is_same_v<S, Float8E4M3>;

// A step in shared memory: keys, values and, in FP8, the scales of both. The row pitch is an odd
// number of 16 bytes, so that the rows of a tensor-core load are in different banks.
template <class S, int kChannels>
struct Step {
  static constexpr int kPack = 16 / static_cast<int>(sizeof(S));  // channels of a copy
  static constexpr int kPacks = kChannels / kPack;                // of a key
  static constexpr int kStride = kChannels + kPack;
  static constexpr int kBytes = 2 * kStep * kStride * static_cast<int>(sizeof(S)) +
                                (kIsFp8<S> ? kStep * static_cast<int>(sizeof(float2)) : 0);
  unsigned char* memory;

  __device__ S* key(int n) const { return reinterpret_cast<S*>(memory) + n * kStride; }
  __device__ S* value(int n) const { return key(kStep + n); }
  __device__ float2* scales() const { return reinterpret_cast<float2*>(key(2 * kStep)); }
};

// Constants of the upcast from E4M3 to T, which shifts exponent and mantissa bits into place. T's
// exponent bias is larger by 8 (fp16) or 120 (bf16), so the shift scales by 2^-8 or 2^-120. Factors
// elsewhere compensate where they cost least: for bf16 queries get 2^104 and weights 2^112, with
// which values up to 2^24 do not overflow.
template <class T>
struct Fp8Upcast;
template <>
struct Fp8Upcast<Float16> {
  static constexpr int kShift = 1;
  static constexpr uint32_t kMagnitudeMask = 0x3f803f80u;
  static constexpr float kScoreFactor = 0x1p8f;   // factor of the products q k
  static constexpr float kWeightFactor = 0x1p8f;  // factor of weights
  static constexpr float kSumFactor = 1;          // factor of the weighted sums
  static __device__ uint32_t scaled_query(uint32_t two) { return two; }
};
template <>
struct Fp8Upcast<BFloat16> {
  static constexpr int kShift = 4;
  static constexpr uint32_t kMagnitudeMask = 0x07f007f0u;
  static constexpr float kScoreFactor = 0x1p16f;
  static constexpr float kWeightFactor = 0x1p112f;
  static constexpr float kSumFactor = 0x1p8f;
  static __device__ uint32_t scaled_query(uint32_t two) {
    constexpr uint32_t kFactors = 0x73807380u;  // 2^104
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&two),
                                           *reinterpret_cast<const __nv_bfloat162*>(&kFactors));
    return *reinterpret_cast<const uint32_t*>(&product);
  }
};

// Upcasts the FP8 values in the upper bytes of two 16-bit halves. REQUIRES: no NaN; the scale of a
// row with NaNs is NaN instead.
template <class T>
__device__ __forceinline__ uint32_t upcast(uint32_t upper_bytes) {
  constexpr uint32_t kSigns = 0x80008000u;
  return (upper_bytes & kSigns) |
         (upper_bytes >> Fp8Upcast<T>::kShift & Fp8Upcast<T>::kMagnitudeMask);
}

// Call f(unit, a) with the left-operand fragments of a step: keys are rows and 16 channels depth,
// or 16 channels are rows and the values' keys depth. With 16-bit elements, channels are in order.
//
// In FP8, 16 bits hold two channels. Of a lane's four adjacent channels of a key, the first and the
// third are its lower depths and the others its deeper ones; QueryFragment has the same order. Of
// the two channels in 16 bits of a value, the first is in row g and the second in row g + 8.
template <class T, class S, int kChannels, class F>
__device__ __forceinline__ void for_each_key_fragment(const Step<S, kChannels>& step,
                                                      const LaneCoordinate& lane, const F& f) {
  if constexpr (!kIsFp8<S>) {
#pragma unroll
    for (int unit = 0; unit < kChannels / kUnit; ++unit) {
      uint32_t a[4];
      load_matrices(a, step.key(lane.lane % 16) + lane.lane / 16 * 8 + unit * kUnit);
      f(unit, a);
    }
  } else {
#pragma unroll
    for (int unit = 0; unit < kChannels / kUnit; unit += 2) {
      uint32_t four[4];
      load_matrices(four, step.key(lane.lane % 16) + (lane.lane / 16 + unit) * kUnit);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t low = four[2 * i], high = four[2 * i + 1];
        const uint32_t a[4] = {upcast<T>(low << 8), upcast<T>(high << 8), upcast<T>(low),
                               upcast<T>(high)};
        f(unit + i, a);
      }
    }
  }
}
template <class T, class S, int kChannels, class F>
__device__ __forceinline__ void for_each_value_fragment(const Step<S, kChannels>& step,
                                                        const LaneCoordinate& lane, const F& f) {
  if constexpr (!kIsFp8<S>) {
    const int key = lane.lane / 16 * 8 + lane.lane % 8;
#pragma unroll
    for (int unit = 0; unit < kChannels / kUnit; ++unit) {
      uint32_t a[4];
      load_matrices_transposed(a, step.value(key) + lane.lane / 8 % 2 * 8 + unit * kUnit);
      f(unit, a);
    }
  } else {
#pragma unroll
    for (int unit = 0; unit < kChannels / kUnit; unit += 2) {
      uint32_t four[4];
      load_matrices_transposed(four, step.value(lane.lane % 16) + (lane.lane / 16 + unit) * kUnit);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t low = four[2 * i], high = four[2 * i + 1];
        const uint32_t a[4] = {upcast<T>(low << 8), upcast<T>(low), upcast<T>(high << 8),
                               upcast<T>(high)};
        f(unit + i, a);
      }
    }
  }
}
// The channels of a unit that are rows g and g + 8 of its values.
template <class S>
__device__ __forceinline__ int2 channels_of_rows(int g) {
  return kIsFp8<S> ? int2{2 * g, 2 * g + 1} : int2{g, g + 8};
}

// Right-operand fragments of the queries of a block's heads.
template <class T, class S, int kChannels, int kTiles>
struct QueryFragment {
  uint32_t words[kChannels / kUnit][kTiles][2];

  __device__ __forceinline__ void load(const PagedProblem<T, S>& p, const PagedBlockIndex& at,
                                       int token, const LaneCoordinate& lane) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int h = t * kTileHeads + lane.row;
      const T* const q = p.q.row(0, at.first_head + min(h, at.num_heads - 1), token);
#pragma unroll
      for (int unit = 0; unit < kChannels / kUnit; ++unit) {
        uint32_t(&two)[2] = words[unit][t];
        if constexpr (kIsFp8<S>) {
          const int channel = unit * kUnit + 2 * lane.column;
          uint2 four{};
          if (h < at.num_heads && channel < p.d)
            four = *reinterpret_cast<const uint2*>(q + channel);
          two[0] = Fp8Upcast<T>::scaled_query(__byte_perm(four.x, four.y, 0x5410));
          two[1] = Fp8Upcast<T>::scaled_query(__byte_perm(four.x, four.y, 0x7632));
        } else {
#pragma unroll
          for (int deep = 0; deep < 2; ++deep) {
            const int channel = unit * kUnit + deep * 8 + lane.column;
            two[deep] = h < at.num_heads && channel < p.d
                            ? *reinterpret_cast<const uint32_t*>(q + channel)
                            : 0u;
          }
        }
      }
    }
  }
};

// Key and value of a row's new token, eight channels of each for a lane.
template <class T, class S>
struct NewToken {
  using Pack = std::conditional_t<kIsFp8<S>, uint2, uint4>;
  Pack key{}, value{};
  float2 scales{};
  int channel;
  bool has_channels;

  __device__ NewToken(const LaneCoordinate& lane, int d)
      : channel(lane.lane * kVector), has_channels(channel < d) {}

  // Loads, and quantizes for FP8 pages. All lanes of a warp call it.
  __device__ __forceinline__ void load(const PagedProblem<T, S>& p, const PagedBlockIndex& at,
                                       int token) {
    key = loaded(p.k.row(0, at.group, token), scales.x);
    value = loaded(p.v.row(0, at.group, token), scales.y);
  }
  __device__ __forceinline__ void put_into_pages(const PagedProblem<T, S>& p,
                                                 const PagedBlockIndex& at, int length) const {
    const int64_t head = p.head_in_pages(at.row, at.group, length - 1);
    if (has_channels) {
      *reinterpret_cast<Pack*>(p.keys + head * p.d + channel) = key;
      *reinterpret_cast<Pack*>(p.values + head * p.d + channel) = value;
    }
    if (kIsFp8<S> && channel == 0) p.scales[head] = scales;
  }
  template <int kChannels>
  __device__ __forceinline__ void put(const Step<S, kChannels>& step, int n) const {
    if (channel < kChannels) {
      *reinterpret_cast<Pack*>(step.key(n) + channel) = key;
      *reinterpret_cast<Pack*>(step.value(n) + channel) = value;
    }
    if (kIsFp8<S> && channel == 0) step.scales()[n] = scales;
  }

 private:
  __device__ __forceinline__ Pack loaded(const T* from, float& scale) const {
    if constexpr (kIsFp8<S>) {
      Floats pack{};
      if (has_channels) pack = unpacked(load_pack(from + channel));
      scale = fp8_row_scale(warp_max(largest_of(pack)));
      return fp8_numbers(pack, scale);
    } else {
      return has_channels ? *reinterpret_cast<const uint4*>(from + channel) : uint4{};
    }
  }
};

}  // namespace megatron::kernels::cuda
