#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/decode_text_worker.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// Attention in the kernel decode_text: a head, or a part of its keys, is a block's.
namespace megatron::kernels::cuda::text {

// By all workers of a block.
template <class T, int kHead>
struct TextAttention {
  static constexpr int kEarly = 3;  // steps of keys and values that are read ahead

  const Parameters& p;
  float* sums;  // in shared memory: [warps, kHead + 2]
  float* qkv;   // in shared memory: [3, kHead]
  int thread, warp, lane;

  // What a group of kHead / 8 lanes knows of the keys it has seen: the maximum of their scores, the
  // sum of their weights, and the weighted sum of 8 channels of their values.
  struct Seen {
    float maximum = -INFINITY, sum = 0, values[8] = {};

    __device__ void add(float other_maximum, float other_sum, const float (&other)[8]) {
      const float larger = fmaxf(maximum, other_maximum);
      if (larger == -INFINITY) return;
      const float own = exp2_fast(maximum - larger);
      const float factor = exp2_fast(other_maximum - larger);
      maximum = larger;
      sum = sum * own + other_sum * factor;
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = values[i] * own + other[i] * factor;
    }
  };
  static constexpr int kLanes = kHead / 8;               // of a key
  static constexpr int kKeys = kWarp / kLanes * kWarps;  // of a step of the block

  __device__ __forceinline__ int64_t place_in_pages(int64_t token, int group) const {
    const auto page_tokens = static_cast<int>(p.shape.page_tokens);
    const int64_t page = p.pages[token / page_tokens];
    return ((page * page_tokens + token % page_tokens) * p.shape.groups + group) * kHead;
  }

  __device__ __forceinline__ void rotate(float* head, int64_t position, int channel) const {
    const int half = p.rotary_dim / 2;
    const float* const angles = p.rotary_table + position * p.rotary_dim;
    const bool halves = p.rotary_pairs == RotaryPairs::kHalves;
    float& x1 = head[halves ? channel : 2 * channel];
    float& x2 = head[halves ? channel + half : 2 * channel + 1];
    const float cosine = angles[channel], sine = angles[channel + half];
    const float y1 = rounded<T>(x1 * cosine - x2 * sine);
    x2 = rounded<T>(x2 * cosine + x1 * sine);
    x1 = y1;
  }

  // Asks for the earlier keys and values of the block's head, so that they are in the cache when
  // the query comes.
  __device__ __forceinline__ void prefetch(const DecodeTextLayer& layer) const {
    const int item = static_cast<int>(blockIdx.x);
    const auto heads = static_cast<int>(p.shape.heads);
    if (item >= heads * p.splits) return;
    const int group = item / p.splits / (heads / static_cast<int>(p.shape.groups));
    const int keys = (*p.length + p.splits - 1) / p.splits;
    const int begin = item % p.splits * keys;
    const int end = min(begin + keys, *p.length - 1);
    for (int token = begin + thread; token < end; token += kWorkers) {
      const int64_t at = place_in_pages(token, group);
      for (int channel = 0; channel < kHead; channel += 64) {
        prefetch_line(static_cast<const T*>(layer.keys) + at + channel);
        prefetch_line(static_cast<const T*>(layer.values) + at + channel);
      }
    }
  }
  __device__ __forceinline__ static void prefetch_line(const T* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
  }

  // A head, or one of several parts of its keys, is a block's.
  __device__ __forceinline__ void attend(const DecodeTextLayer& layer, uint32_t tag) const {
    const int item = static_cast<int>(blockIdx.x);
    const auto heads = static_cast<int>(p.shape.heads);
    if (item >= heads * p.splits) return;
    const int head = item / p.splits, split = item % p.splits;
    const int heads_of_group = heads / static_cast<int>(p.shape.groups);
    const int group = head / heads_of_group;
    const int length = *p.length;
    const int last = length - 1;
    const int keys_of_split = (length + p.splits - 1) / p.splits;
    const int begin = split * keys_of_split;
    const int end = min(begin + keys_of_split, length);

    // Earlier keys and values do not depend on this step.
    const int own = begin + warp * (kWarp / kLanes) + lane / kLanes;
    const int channel = lane % kLanes * 8;
    const T* const keys = static_cast<const T*>(layer.keys);
    const T* const values = static_cast<const T*>(layer.values);
    uint4 some_keys[kEarly], some_values[kEarly];
    const auto load = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kEarly; ++i) {
        const int token = own + (batch + i) * kKeys;
        if (token >= min(end, last)) continue;
        const int64_t at = place_in_pages(token, group) + channel;
        some_keys[i] = *reinterpret_cast<const uint4*>(keys + at);
        some_values[i] = *reinterpret_cast<const uint4*>(values + at);
      }
    };
    load(0);

    constexpr int kPairs = kHead / 4;  // pairs of messages of a query, a key or a value
    if (thread < 3 * kPairs) {
      const int which = thread / kPairs, at = thread % kPairs;
      const int base = group * (heads_of_group + 2);
      const int row = which == 0 ? base + head % heads_of_group : base + heads_of_group + which - 1;
      const MessagePair pair = receive(pairs_at(p, p.places.qkv) + row * kPairs + at, tag);
      const float2 first = two_floats<T>(pair.first.data), second = two_floats<T>(pair.second.data);
      reinterpret_cast<float4*>(qkv)[thread] = {first.x, first.y, second.x, second.y};
    }
    workers_barrier();
    if (p.rotary_dim > 0) {
      const int half = p.rotary_dim / 2;
      if (thread < 2 * half) rotate(qkv + thread / half * kHead, last, thread % half);
      workers_barrier();
    }
    if (head % heads_of_group == 0 && begin <= last && last < end && thread < 2 * kHead) {
      const int64_t at = place_in_pages(last, group) + thread % kHead;
      T* const to = static_cast<T*>(thread < kHead ? layer.keys : layer.values);
      to[at] = from_float<T>(qkv[kHead + thread]);
    }

    float query[8];
    const float factor = p.shape.scale * 1.44269504f;  // weights are powers of 2
#pragma unroll
    for (int i = 0; i < 8; ++i) query[i] = qkv[channel + i] * factor;
    Seen seen;
    const auto see = [&](const float(&key)[8], const float(&value)[8], bool exists) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) score += query[i] * key[i];
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) score += __shfl_xor_sync(kFullMask, score, step);
      if (exists) seen.add(score, 1, value);
    };
    const auto floats = [](uint4 eight, float(&x)[8]) {
      const float4 first = four_floats<T>({eight.x, eight.y});
      const float4 second = four_floats<T>({eight.z, eight.w});
      x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
      x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
    };
    // All lanes of a warp take as many steps: begin + warp's keys + i * kKeys < end.
    const int first_of_warp = begin + warp * (kWarp / kLanes);
    const auto see_token = [&](int token, uint4 k, uint4 v) {
      float key[8], value[8];
      if (token == last) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          key[i] = qkv[kHead + channel + i];
          value[i] = qkv[2 * kHead + channel + i];
        }
      } else {
        floats(k, key);
        floats(v, value);
      }
      see(key, value, token < end);
    };
    for (int batch = 0; first_of_warp + batch * kKeys < end; batch += kEarly) {
      if (batch > 0) load(batch);
#pragma unroll
      for (int i = 0; i < kEarly; ++i) {
        if (first_of_warp + (batch + i) * kKeys < end) {
          see_token(own + (batch + i) * kKeys, some_keys[i], some_values[i]);
        }
      }
    }

    // The groups of a warp, then the warps, then the blocks of a head.
#pragma unroll
    for (int distance = kLanes; distance < kWarp; distance *= 2) {
      float other[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) other[i] = __shfl_xor_sync(kFullMask, seen.values[i], distance);
      const float maximum = __shfl_xor_sync(kFullMask, seen.maximum, distance);
      const float sum = __shfl_xor_sync(kFullMask, seen.sum, distance);
      seen.add(maximum, sum, other);
    }
    float* const of_warp = sums + warp * (kHead + 2);
    if (lane < kLanes) {
#pragma unroll
      for (int i = 0; i < 8; ++i) of_warp[channel + i] = seen.values[i];
      if (lane == 0) of_warp[kHead] = seen.maximum;
      if (lane == 0) of_warp[kHead + 1] = seen.sum;
    }
    workers_barrier();
    if (thread < kHead / 2) {
      float maximum = -INFINITY, sum = 0;
      float2 value{0, 0};
      for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, sums[w * (kHead + 2) + kHead]);
      for (int w = 0; w < kWarps; ++w) {
        const float* const other = sums + w * (kHead + 2);
        const float weight = maximum == -INFINITY ? 0 : exp2_fast(other[kHead] - maximum);
        sum += other[kHead + 1] * weight;
        value.x += other[2 * thread] * weight;
        value.y += other[2 * thread + 1] * weight;
      }
      combine_parts(head, split, tag, maximum, sum, value);
    }
    workers_barrier();
  }

  // By kHead / 2 threads of each block of a head: the first block sends their common result.
  __device__ __forceinline__ void combine_parts(int head, int split, uint32_t tag, float maximum,
                                                float sum, float2 value) const {
    if (p.splits > 1) {
      constexpr int kPairs = (kHead + 2) / 2;
      MessagePair* const parts = pairs_at(p, p.places.parts) + int64_t{head} * p.splits * kPairs;
      MessagePair* const own = parts + split * kPairs;
      if (split > 0) {
        send(own + thread, __float_as_uint(value.x), __float_as_uint(value.y), tag);
        if (thread == 0) {
          send(own + kHead / 2, __float_as_uint(maximum), __float_as_uint(sum), tag);
        }
        return;
      }
      for (int i = 1; i < p.splits; ++i) {
        const MessagePair other = receive(parts + i * kPairs + thread, tag);
        const MessagePair weight = receive(parts + i * kPairs + kHead / 2, tag);
        const float other_maximum = __uint_as_float(weight.first.data);
        const float larger = fmaxf(maximum, other_maximum);
        const float own_factor = exp2_fast(maximum - larger);
        const float factor = exp2_fast(other_maximum - larger);
        maximum = larger;
        sum = sum * own_factor + __uint_as_float(weight.second.data) * factor;
        value.x = value.x * own_factor + __uint_as_float(other.first.data) * factor;
        value.y = value.y * own_factor + __uint_as_float(other.second.data) * factor;
      }
    }
    send(p.messages + p.places.attention + head * (kHead / 2) + thread,
         pack_two<T>(value.x / sum, value.y / sum), tag);
  }
};

}  // namespace megatron::kernels::cuda::text
