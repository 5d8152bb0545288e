#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/decode_text_worker.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// Attention in the kernel decode_text: a head, or a part of its keys, is a block's.
namespace megatron::kernels::cuda::text {

// The keys of the block, and their head. Only those before `last`, the text's last token, are
// earlier than this step.
struct AttentionItem {
  int head, group, split, begin, end, last;
  bool exists;
};
__device__ __forceinline__ AttentionItem attention_item(const Parameters& p) {
  const auto heads = static_cast<int>(p.shape.heads), block = static_cast<int>(blockIdx.x);
  const int items = heads * p.splits;
  const int stride = static_cast<int>(gridDim.x) / items;  // they are far from each other
  const int index = block / stride, length = *p.length;
  const int keys = (length + p.splits - 1) / p.splits;
  AttentionItem item{};
  item.exists = block % stride == 0 && index < items;
  item.head = index / p.splits;
  item.group = item.head / (heads / static_cast<int>(p.shape.groups));
  item.split = index % p.splits;
  item.begin = item.split * keys;
  item.end = min(item.begin + keys, length);
  item.last = length - 1;
  return item;
}

// By the warps of a block that multiply.
template <class T, int kHead>
struct TextAttention {
  static constexpr int kThreads = kMultiplierThreads;
  static constexpr int kLanes = kHead / 8;                  // of a key
  static constexpr int kKeysOfWarp = kWarp / kLanes;        // of a step
  static constexpr int kKeys = kKeysOfWarp * kMultipliers;  // of a step of the block
  static constexpr int kSteps = 8;     // of keys and values that are in registers at once
  static constexpr int kTogether = 4;  // of them, that do not wait for each other's sums

  struct alignas(16) Memory {
    AttentionItem item;
    alignas(16) float qkv[3 * kHead];
    float results[kMultipliers][kHead + 2];  // and the maximum of the scores, and their sum
  };

  const Parameters& p;
  Memory& memory;
  int thread, warp, lane;

  __device__ __forceinline__ int64_t place_in_pages(int page, int token, int group) const {
    const int in_page = token & ((1 << p.page_shift) - 1);
    const int64_t place = (int64_t{page} << p.page_shift) + in_page;
    return (place * p.shape.groups + group) * kHead;
  }

  // The cosine and the sine of the thread's channel.
  __device__ __forceinline__ float2 angle_of(int position) const {
    const int half = p.rotary_dim / 2;
    if (thread >= 2 * half) return {};
    const float* const angles = p.rotary_table + int64_t{position} * p.rotary_dim + thread % half;
    return {angles[0], angles[half]};
  }
  __device__ __forceinline__ void rotate(float2 angle) const {
    const int half = p.rotary_dim / 2;
    if (thread >= 2 * half) return;
    float* const head = memory.qkv + thread / half * kHead;
    const int channel = thread % half;
    const bool halves = p.rotary_pairs == RotaryPairs::kHalves;
    float& x1 = head[halves ? channel : 2 * channel];
    float& x2 = head[halves ? channel + half : 2 * channel + 1];
    const float y1 = rounded<T>(x1 * angle.x - x2 * angle.y);
    x2 = rounded<T>(x2 * angle.x + x1 * angle.y);
    x1 = y1;
  }

  // What a group of kLanes lanes knows of the keys it has seen: the maximum of their scores, the
  // sum of their weights, and the weighted sum of 8 channels of their values.
  struct Seen {
    float maximum = -INFINITY, sum = 0, values[8] = {};

    __device__ __forceinline__ void scale_to(float larger) {
      const float factor = larger == -INFINITY ? 0 : exp2_fast(maximum - larger);
      maximum = larger;
      sum *= factor;
#pragma unroll
      for (float& value : values) value *= factor;
    }
  };

  __device__ __forceinline__ static uint4 packed_at(const float* from) {
    return {pack_two<T>(from[0], from[1]), pack_two<T>(from[2], from[3]),
            pack_two<T>(from[4], from[5]), pack_two<T>(from[6], from[7])};
  }
  __device__ __forceinline__ int heads_of_group() const {
    return static_cast<int>(p.shape.heads) / static_cast<int>(p.shape.groups);
  }

  // Asks for the earlier keys and values of the block, so that they are in the cache when the
  // query comes.
  __device__ __forceinline__ void prefetch(const DecodeTextLayer& layer) const {
    const AttentionItem& item = memory.item;
    if (!item.exists) return;
#pragma unroll 1
    for (int token = item.begin + thread; token < min(item.end, item.last); token += kThreads) {
      const int64_t at = place_in_pages(p.pages[token >> p.page_shift], token, item.group);
      for (int channel = 0; channel < kHead; channel += 64) {
        prefetch_line(static_cast<const T*>(layer.keys) + at + channel);
        prefetch_line(static_cast<const T*>(layer.values) + at + channel);
      }
    }
  }
  // Looks for the query `wait` cycles after cycles_now() was `asked`. REQUIRES: item.exists.
  __device__ __forceinline__ void attend(const DecodeTextLayer& layer, uint32_t tag, uint32_t asked,
                                         int wait) const {
    const AttentionItem item = memory.item;
    const int head = item.head, group = item.group, split = item.split;
    const int begin = item.begin, end = item.end, last = item.last;

    // Earlier keys and values do not depend on this step.
    const int own = begin + warp * kKeysOfWarp + lane / kLanes;
    const int earlier = min(end, last);
    const int channel = lane % kLanes * 8;
    uint4 keys[kSteps], values[kSteps];
    const auto exists_at = [&](int step) { return begin + step * kKeys < earlier; };
    // Of a lane that has no key its place is that of the last: what it reads counts as 0.
    const auto page_at = [&](int step) {
      return p.pages[min(own + step * kKeys, earlier - 1) >> p.page_shift];
    };
    const auto load = [&](int step, int page, int i) {
      const int64_t at =
          place_in_pages(page, min(own + step * kKeys, earlier - 1), group) + channel;
      keys[i] = load_once(static_cast<const T*>(layer.keys) + at);
      values[i] = load_once(static_cast<const T*>(layer.values) + at);
    };
    int pages[kSteps] = {};  // all are asked for before the first is used
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (exists_at(i)) pages[i] = page_at(i);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      keys[i] = values[i] = {0, 0, 0, 0};
      if (exists_at(i)) load(i, pages[i], i);
    }
    const float2 angle = p.rotary_dim > 0 ? angle_of(last) : float2{};

    constexpr int kEights = kHead / kAtOnce;  // of a query, a key or a value
    wait_cycles(asked, wait);
    if (thread < 3 * kEights) {
      const int which = thread / kEights, at = thread % kEights;
      const int base = group * (heads_of_group() + 2);
      const int row =
          which == 0 ? base + head % heads_of_group() : base + heads_of_group() + which - 1;
      const Place* const from = vector_of(p, p.places.qkv) + place_of(row * kHead + at * kAtOnce);
      EightPlaces found = look(from);
      while (!have_come(found)) found = look(from);
      float eight[kAtOnce];
      eight_floats<T>(elements_of(found), eight);
      auto* const fours = reinterpret_cast<float4*>(memory.qkv + thread * kAtOnce);
      fours[0] = {eight[0], eight[1], eight[2], eight[3]};
      fours[1] = {eight[4], eight[5], eight[6], eight[7]};
    }
    multipliers_barrier();
    if (p.rotary_dim > 0) {
      rotate(angle);
      multipliers_barrier();
    }
    const float factor = p.shape.scale * 1.44269504f;  // weights are powers of 2
    const auto* const fours = reinterpret_cast<const float4*>(memory.qkv + channel);
    const float4 first = fours[0], second = fours[1];
    const float query[8] = {first.x * factor,  first.y * factor,  first.z * factor,
                            first.w * factor,  second.x * factor, second.y * factor,
                            second.z * factor, second.w * factor};
    Seen seen;
#pragma unroll 1
    for (int step = 0; begin + step * kKeys < end; step += kSteps) {
      float scores[kSteps];
      float maximum = seen.maximum;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        scores[i] = -INFINITY;
        if (own + (step + i) * kKeys != last) continue;
        keys[i] = packed_at(memory.qkv + kHead + channel);
        values[i] = packed_at(memory.qkv + 2 * kHead + channel);
      }
#pragma unroll
      for (int together = 0; together < kSteps; together += kTogether) {
        if (begin + (step + together) * kKeys >= end) break;
        float sums[kTogether] = {};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          float key[8];
          eight_floats<T>(keys[together + i], key);
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[i] += query[j] * key[j];
        }
#pragma unroll
        for (int lanes = 1; lanes < kLanes; lanes *= 2) {
#pragma unroll
          for (float& sum : sums) sum += __shfl_xor_sync(kFullMask, sum, lanes);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (own + (step + together + i) * kKeys >= end) continue;
          scores[together + i] = sums[i];
          maximum = fmaxf(maximum, sums[i]);
        }
      }
      seen.scale_to(maximum);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (begin + (step + i) * kKeys < end) {
          const float weight = maximum == -INFINITY ? 0 : exp2_fast(scores[i] - maximum);
          float value[8];
          eight_floats<T>(values[i], value);
          seen.sum += weight;
#pragma unroll
          for (int j = 0; j < 8; ++j) seen.values[j] += weight * value[j];
        }
        // While the others are used.
        if (exists_at(step + kSteps + i)) load(step + kSteps + i, page_at(step + kSteps + i), i);
      }
    }
    send_result(seen, head, split, channel, tag);
    if (head % heads_of_group() == 0 && begin <= last && last < end) {
      const int64_t place = place_in_pages(p.pages[last >> p.page_shift], last, group);
      for (int at = thread; at < 2 * kHead; at += kThreads) {
        T* const to = static_cast<T*>(at < kHead ? layer.keys : layer.values);
        to[place + at % kHead] = from_float<T>(memory.qkv[kHead + at]);
      }
    }
  }

  // The groups of a warp, then the warps, then the blocks of a head.
  __device__ __forceinline__ void send_result(Seen& seen, int head, int split, int channel,
                                              uint32_t tag) const {
    float maximum = seen.maximum;
#pragma unroll
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, lanes));
    }
    seen.scale_to(maximum);
#pragma unroll
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) {
      seen.sum += __shfl_xor_sync(kFullMask, seen.sum, lanes);
#pragma unroll
      for (float& value : seen.values) value += __shfl_xor_sync(kFullMask, value, lanes);
    }
    if (lane < kLanes) {
      float* const result = memory.results[warp];
#pragma unroll
      for (int i = 0; i < 8; ++i) result[channel + i] = seen.values[i];
      if (lane == 0) result[kHead] = maximum, result[kHead + 1] = seen.sum;
    }
    multipliers_barrier();
    if (thread >= kHead / 2) return;
    float largest = -INFINITY, sum = 0;
    float2 value{0, 0};
#pragma unroll
    for (const auto& result : memory.results) largest = fmaxf(largest, result[kHead]);
#pragma unroll
    for (const auto& result : memory.results) {
      const float weight = largest == -INFINITY ? 0 : exp2_fast(result[kHead] - largest);
      sum += result[kHead + 1] * weight;
      value.x += result[2 * thread] * weight;
      value.y += result[2 * thread + 1] * weight;
    }
    combine_splits(head, split, tag, largest, sum, value);
  }

  // Where a thread sends its two channels of a head's result.
  __device__ __forceinline__ Place* result_at(int head) const {
    return vector_of(p, p.places.attention) + place_of(head * kHead + 2 * thread);
  }
  // By the threads that have sent a result, when all have read it.
  __device__ __forceinline__ void clear_result() const {
    if (memory.item.exists && memory.item.split == 0 && thread < kHead / 2) {
      clear_two(result_at(memory.item.head));
    }
  }
  // By kHead / 2 threads of each block of a head: the first block sends their common result.
  __device__ __forceinline__ void combine_splits(int head, int split, uint32_t tag, float maximum,
                                                 float sum, float2 value) const {
    if (p.splits > 1) {
      constexpr int kNumbers = (kHead + 2) / 2;
      Numbers* const results = reinterpret_cast<Numbers*>(p.words + p.places.splits) +
                               int64_t{head} * p.splits * kNumbers;
      if (split > 0) {
        Numbers* const own = results + split * kNumbers;
        send(own + thread, value.x, value.y, tag);
        if (thread == 0) send(own + kHead / 2, maximum, sum, tag);
        return;
      }
      constexpr int kSplitsAtOnce = 4;
#pragma unroll 1
      for (int begin = 1; begin < p.splits; begin += kSplitsAtOnce) {
        uint4 values[kSplitsAtOnce] = {}, weights[kSplitsAtOnce] = {};  // maximum and sum
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          if (begin + i >= p.splits) break;
          const Numbers* const from = results + (begin + i) * kNumbers;
          values[i] = look(from + thread);
          weights[i] = look(from + kHead / 2);
        }
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          if (begin + i >= p.splits) break;
          const Numbers* const from = results + (begin + i) * kNumbers;
          const float2 other = receive(from + thread, values[i], tag);
          const float2 weight = receive(from + kHead / 2, weights[i], tag);
          const float larger = fmaxf(maximum, weight.x);
          const float own_factor = exp2_fast(maximum - larger);
          const float factor = exp2_fast(weight.x - larger);
          maximum = larger;
          sum = sum * own_factor + weight.y * factor;
          value.x = value.x * own_factor + other.x * factor;
          value.y = value.y * own_factor + other.y * factor;
        }
      }
    }
    send_two(result_at(head), pack_two<T>(value.x / sum, value.y / sum));
  }
};

}  // namespace megatron::kernels::cuda::text
