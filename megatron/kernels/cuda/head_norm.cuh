#pragma once

#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/head_norm.h"

// The kernel of norm_heads_inplace(): d / 8 lanes have a head, eight channels each.
namespace megatron::kernels::cuda {

struct NormedHeads {
  void* qkv;
  const void *q_weight, *q_bias, *k_weight, *k_bias;
  float weight_offset, epsilon;
  const float* table;  // null: no rotation
  const int64_t* ids;  // [b, s] or null
  int64_t s, b, positions, offset;
  int heads, groups, half;
};

inline NormedHeads normed_heads(TensorView qkv, int64_t heads, int64_t groups,
                                const HeadNorms& norms, const HeadRotation& rotation) {
  const bool rotates = rotation.table.data != nullptr;
  return {
      .qkv = qkv.data,
      .q_weight = norms.q_weight.data,
      .q_bias = norms.q_bias.data,
      .k_weight = norms.k_weight.data,
      .k_bias = norms.k_bias.data,
      .weight_offset = norms.weight_offset,
      .epsilon = norms.epsilon,
      .table = rotates ? rotation.table.as<float>() : nullptr,
      .ids = rotation.position_ids.data == nullptr ? nullptr : rotation.position_ids.as<int64_t>(),
      .s = qkv.size(0),
      .b = qkv.size(1),
      .positions = rotates ? rotation.table.size(0) : 0,
      .offset = rotation.offset,
      .heads = static_cast<int>(heads),
      .groups = static_cast<int>(groups),
      .half = rotates ? static_cast<int>(rotation.table.size(1) / 2) : 0};
}

// The sum over kLanes adjacent lanes.
template <int kLanes>
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) x += __shfl_xor_sync(kFullMask, x, lanes);
  return x;
}

// Rotates the lane's eight channels from `channel` on. All lanes of a warp call it.
template <RotaryPairs kPairs>
__device__ __forceinline__ void rotate_channels(const NormedHeads& p, int64_t token, int channel,
                                                float (&x)[kVector]) {
  const int64_t i = token / p.b, batch = token - i * p.b;
  const int64_t position = p.ids == nullptr ? p.offset + i : p.ids[batch * p.s + i];
  // As in rotary_inplace(): a position outside the table makes its token NaN.
  const bool is_known = position >= 0 && position < p.positions;
  const float* const row = p.table + (is_known ? position : 0) * 2 * p.half;
  const bool rotates = channel < 2 * p.half;
  if constexpr (kPairs == RotaryPairs::kHalves) {
    const bool is_second = rotates && channel >= p.half;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, distance = p.half / kVector;
    const int other = !rotates ? lane : is_second ? lane - distance : lane + distance;
    const int pair = is_second ? channel - p.half : channel;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float partner = __shfl_sync(kFullMask, x[j], other);
      if (!rotates) continue;
      const float cosine = is_known ? row[pair + j] : nanf(""), sine = row[p.half + pair + j];
      x[j] = is_second ? x[j] * cosine + partner * sine : x[j] * cosine - partner * sine;
    }
  } else {
    if (!rotates) return;
#pragma unroll
    for (int j = 0; j < kVector; j += 2) {
      const int pair = (channel + j) / 2;
      const float cosine = is_known ? row[pair] : nanf(""), sine = row[p.half + pair];
      const float before = x[j];
      x[j] = before * cosine - x[j + 1] * sine;
      x[j + 1] = x[j + 1] * cosine + before * sine;
    }
  }
}

template <class T, int kLanes, RotaryPairs kPairs>
__global__ void __launch_bounds__(kThreads) norm_heads_kernel(const NormedHeads p) {
  constexpr int kHead = kLanes * kVector;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int per_group = p.heads / p.groups;
  const int normed = p.heads + p.groups;  // of a token
  const int64_t all = p.s * p.b * normed;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes);
  const int64_t index = first + static_cast<int>(threadIdx.x) / kLanes;
  const bool exists = index < all;
  const int64_t token = exists ? index / normed : 0;
  const int head = static_cast<int>(exists ? index - token * normed : 0);
  const int group = head / (per_group + 1), in_group = head - group * (per_group + 1);
  const bool is_key = in_group == per_group;
  const int channel = static_cast<int>(threadIdx.x) % kLanes * kVector;
  const int64_t of_token = p.heads + 2 * int64_t{p.groups};
  const int64_t at =
      (token * of_token + group * (int64_t{per_group} + 2) + in_group) * kHead + channel;

  float x[kVector] = {}, weight[kVector], bias[kVector] = {};
  const void* const weights = is_key ? p.k_weight : p.q_weight;
  const void* const biases = is_key ? p.k_bias : p.q_bias;
  const bool is_rms_norm = p.q_bias == nullptr;
  load(weight, static_cast<const T*>(weights) + channel);
  if (!is_rms_norm) load(bias, static_cast<const T*>(biases) + channel);
  if (exists) load(x, static_cast<const T*>(p.qkv) + at);

  float mean = 0, squares = 0;
  if (!is_rms_norm) {
#pragma unroll
    for (const float one : x) mean += one;
    mean = sum_of_lanes<kLanes>(mean) / kHead;
  }
#pragma unroll
  for (const float one : x) squares += (one - mean) * (one - mean);
  const float scale = 1.0f / sqrtf(sum_of_lanes<kLanes>(squares) / kHead + p.epsilon);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    float normal = (x[j] - mean) * scale;
    if (is_rms_norm) normal = to_float(from_float<T>(normal));
    x[j] = to_float(from_float<T>(normal * (weight[j] + p.weight_offset) + bias[j]));
  }
  if (p.table != nullptr) rotate_channels<kPairs>(p, token, channel, x);
  if (exists) store(static_cast<T*>(p.qkv) + at, x);
}

}  // namespace megatron::kernels::cuda
