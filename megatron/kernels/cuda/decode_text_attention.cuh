#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/decode_text_common.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// Split-KV attention in the kernel decode_text: each block has one head, or a split of its keys.
namespace megatron::kernels::cuda::text {

// A block's head and split of its keys, [begin, end). `last` is the text's last token, whose key
// and value this step computes; all others are in the KV cache.
struct HeadSplit {
  int head, group, split, begin, end, last;
  bool exists;
};
__device__ __forceinline__ HeadSplit head_split_of_block(const Parameters& p) {
  const auto heads = static_cast<int>(p.shape.heads), block = static_cast<int>(blockIdx.x);
  const int items = heads * p.splits;
  const int stride = static_cast<int>(gridDim.x) / items;  // spreads the splits over the GPU
  const int index = block / stride, length = *p.length;
  const int keys = (length + p.splits - 1) / p.splits;
  HeadSplit work{};
  work.exists = block % stride == 0 && index < items;
  work.head = index / p.splits;
  work.group = work.head / (heads / static_cast<int>(p.shape.groups));
  work.split = index % p.splits;
  work.begin = work.split * keys;
  work.end = min(work.begin + keys, length);
  work.last = length - 1;
  return work;
}

// Attention of one split. The MMA warps of the block call it.
template <class T, int kHead>
struct DecodeAttention {
  static constexpr int kThreads = kMmaThreads;
  static constexpr int kLanes = kHead / 8;               // lanes that share a key
  static constexpr int kKeysOfWarp = kWarp / kLanes;     // keys of a warp in one step
  static constexpr int kKeys = kKeysOfWarp * kMmaWarps;  // keys of the block in one step
  static constexpr int kSteps = 8;        // steps whose keys and values are in registers
  static constexpr int kInterleaved = 4;  // independent steps, to hide the latency of shuffles

  struct alignas(16) Memory {
    HeadSplit work;
    alignas(16) float qkv[3 * kHead];
    float results[kMmaWarps][kHead + 2];  // output channels, maximum score, sum of weights
  };

  const Parameters& p;
  Memory& memory;
  int thread, warp, lane;

  __device__ __forceinline__ int64_t offset_in_pages(int page, int token, int group) const {
    const int in_page = token & ((1 << p.page_shift) - 1);
    const int64_t offset = (int64_t{page} << p.page_shift) + in_page;
    return (offset * p.shape.groups + group) * kHead;
  }

  // Cosine and sine of the thread's channel.
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

  // Parameters of the norm of a query or key, for the lane's eight channels.
  struct HeadNorm {
    uint4 weight = {}, bias = {};
  };
  // REQUIRES: `which`, 0 for the query and 1 for the key, has a norm.
  __device__ __forceinline__ HeadNorm head_norm_of(const DecodeTextLayer& layer, int which,
                                                   int at) const {
    const void* const weight = which == 0 ? layer.q_norm_weight : layer.k_norm_weight;
    const void* const bias = which == 0 ? layer.q_norm_bias : layer.k_norm_bias;
    HeadNorm norm;
    norm.weight = load_now(static_cast<const uint4*>(weight) + at);
    if (bias != nullptr) norm.bias = load_now(static_cast<const uint4*>(bias) + at);
    return norm;
  }
  // The sum over the kLanes adjacent lanes that share a query or key.
  __device__ __forceinline__ static float sum_of_head(float x) {
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) x += __shfl_xor_sync(kFullMask, x, lanes);
    return x;
  }
  // The norm of a query or key. A whole warp calls it.
  __device__ __forceinline__ void normalize(float (&x)[kAtOnce], const HeadNorm& norm) const {
    float mean = 0, squares = 0;
    if (!p.shape.is_rms_norm) {
#pragma unroll
      for (const float number : x) mean += number;
      mean = sum_of_head(mean) / kHead;
    }
#pragma unroll
    for (const float number : x) squares += (number - mean) * (number - mean);
    const float factor = rsqrtf(sum_of_head(squares) / kHead + p.shape.epsilon);
    float weight[kAtOnce], bias[kAtOnce];
    eight_floats<T>(norm.weight, weight);
    eight_floats<T>(norm.bias, bias);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float w = weight[i] + (p.shape.one_plus_weight ? 1.0f : 0.0f);
      x[i] = rounded<T>((x[i] - mean) * factor * w + bias[i]);
    }
  }

  // Online softmax state of a group of kLanes lanes: running maximum, sum of weights, and the
  // weighted sum of 8 channels of the values.
  struct SoftmaxState {
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

  // Prefetches the block's cached keys and values into L2 while the query is computed.
  __device__ __forceinline__ void prefetch(const DecodeTextLayer& layer) const {
    const HeadSplit& work = memory.work;
    if (!work.exists) return;
#pragma unroll 1
    for (int token = work.begin + thread; token < min(work.end, work.last); token += kThreads) {
      const int64_t at = offset_in_pages(p.pages[token >> p.page_shift], token, work.group);
      for (int channel = 0; channel < kHead; channel += 64) {
        prefetch_line(static_cast<const T*>(layer.keys) + at + channel);
        prefetch_line(static_cast<const T*>(layer.values) + at + channel);
      }
    }
  }
  // Computes the split's attention and publishes it. The first poll for the query comes `wait`
  // cycles after cycles_now() was `since`. REQUIRES: work.exists.
  __device__ __forceinline__ void attend(const DecodeTextLayer& layer, uint32_t tag, uint32_t since,
                                         int wait) const {
    const HeadSplit work = memory.work;
    const int head = work.head, group = work.group, split = work.split;
    const int begin = work.begin, end = work.end, last = work.last;

    // Cached keys and values do not depend on this step.
    const int own = begin + warp * kKeysOfWarp + lane / kLanes;
    const int earlier = min(end, last);
    const int channel = lane % kLanes * 8;
    uint4 keys[kSteps], values[kSteps];
    const auto exists_at = [&](int step) { return begin + step * kKeys < earlier; };
    // Lanes without a key load the last one; its weight is 0.
    const auto page_at = [&](int step) {
      return p.pages[min(own + step * kKeys, earlier - 1) >> p.page_shift];
    };
    const auto load = [&](int step, int page, int i) {
      const int64_t at =
          offset_in_pages(page, min(own + step * kKeys, earlier - 1), group) + channel;
      keys[i] = load_once(static_cast<const T*>(layer.keys) + at);
      values[i] = load_once(static_cast<const T*>(layer.values) + at);
    };
    int pages[kSteps] = {};  // all loads are in flight before the first use
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

    constexpr int kEights = kHead / kAtOnce;  // polls of a query, a key or a value
    static_assert(kEights == kLanes && 2 * kEights <= kWarp);
    const int which = thread / kEights, at = thread % kEights;
    const bool has_norms = layer.q_norm_weight != nullptr;
    HeadNorm norm;
    if (has_norms && which < 2) norm = head_norm_of(layer, which, at);
    wait_cycles(since, wait);
    float eight[kAtOnce] = {};
    if (which < 3) {
      const int base = group * (heads_of_group() + 2);
      const int row =
          which == 0 ? base + head % heads_of_group() : base + heads_of_group() + which - 1;
      const FlaggedElement* const from =
          vector_at(p, p.offsets.qkv) + padded_index(row * kHead + at * kAtOnce);
      EightFlagged found = poll(from);
      while (!all_ready(found)) found = poll(from);
      eight_floats<T>(elements_of(found), eight);
    }
    if (has_norms && warp == 0) {  // which has the query and the key
      float normed[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) normed[i] = eight[i];
      normalize(normed, norm);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) eight[i] = which < 2 ? normed[i] : eight[i];
    }
    if (which < 3) {
      auto* const fours = reinterpret_cast<float4*>(memory.qkv + thread * kAtOnce);
      fours[0] = {eight[0], eight[1], eight[2], eight[3]};
      fours[1] = {eight[4], eight[5], eight[6], eight[7]};
    }
    mma_barrier();
    if (p.rotary_dim > 0) {
      rotate(angle);
      mma_barrier();
    }
    const float factor = p.shape.scale * 1.44269504f;  // weights are powers of 2
    const auto* const fours = reinterpret_cast<const float4*>(memory.qkv + channel);
    const float4 first = fours[0], second = fours[1];
    const float query[8] = {first.x * factor,  first.y * factor,  first.z * factor,
                            first.w * factor,  second.x * factor, second.y * factor,
                            second.z * factor, second.w * factor};
    SoftmaxState softmax;
#pragma unroll 1
    for (int step = 0; begin + step * kKeys < end; step += kSteps) {
      float scores[kSteps];
      float maximum = softmax.maximum;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        scores[i] = -INFINITY;
        if (own + (step + i) * kKeys != last) continue;
        keys[i] = packed_at(memory.qkv + kHead + channel);
        values[i] = packed_at(memory.qkv + 2 * kHead + channel);
      }
#pragma unroll
      for (int together = 0; together < kSteps; together += kInterleaved) {
        if (begin + (step + together) * kKeys >= end) break;
        float sums[kInterleaved] = {};
#pragma unroll
        for (int i = 0; i < kInterleaved; ++i) {
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
        for (int i = 0; i < kInterleaved; ++i) {
          if (own + (step + together + i) * kKeys >= end) continue;
          scores[together + i] = sums[i];
          maximum = fmaxf(maximum, sums[i]);
        }
      }
      softmax.scale_to(maximum);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (begin + (step + i) * kKeys < end) {
          const float weight = maximum == -INFINITY ? 0 : exp2_fast(scores[i] - maximum);
          float value[8];
          eight_floats<T>(values[i], value);
          softmax.sum += weight;
#pragma unroll
          for (int j = 0; j < 8; ++j) softmax.values[j] += weight * value[j];
        }
        // Overlaps with the remaining steps.
        if (exists_at(step + kSteps + i)) load(step + kSteps + i, page_at(step + kSteps + i), i);
      }
    }
    publish_result(softmax, head, split, channel, tag);
    if (head % heads_of_group() == 0 && begin <= last && last < end) {
      const int64_t offset = offset_in_pages(p.pages[last >> p.page_shift], last, group);
      for (int element = thread; element < 2 * kHead; element += kThreads) {
        T* const to = static_cast<T*>(element < kHead ? layer.keys : layer.values);
        to[offset + element % kHead] = from_float<T>(memory.qkv[kHead + element]);
      }
    }
  }

  // Reduces the softmax state over the lane groups of a warp, the warps, and the splits of a head.
  __device__ __forceinline__ void publish_result(SoftmaxState& softmax, int head, int split,
                                                 int channel, uint32_t tag) const {
    float maximum = softmax.maximum;
#pragma unroll
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, lanes));
    }
    softmax.scale_to(maximum);
#pragma unroll
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) {
      softmax.sum += __shfl_xor_sync(kFullMask, softmax.sum, lanes);
#pragma unroll
      for (float& value : softmax.values) value += __shfl_xor_sync(kFullMask, value, lanes);
    }
    if (lane < kLanes) {
      float* const result = memory.results[warp];
#pragma unroll
      for (int i = 0; i < 8; ++i) result[channel + i] = softmax.values[i];
      if (lane == 0) result[kHead] = maximum, result[kHead + 1] = softmax.sum;
    }
    mma_barrier();
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

  // Slot of the thread's two channels of a head's result.
  __device__ __forceinline__ FlaggedElement* result_at(int head) const {
    return vector_at(p, p.offsets.attention) + padded_index(head * kHead + 2 * thread);
  }
  // Clears the published result. The threads that published it call this once all blocks have read
  // it.
  __device__ __forceinline__ void clear_result() const {
    if (memory.work.exists && memory.work.split == 0 && thread < kHead / 2) {
      clear_two(result_at(memory.work.head));
    }
  }
  // Combines the splits of a head in its first block, which publishes the result; the other blocks
  // send their partial results to it. kHead / 2 threads of each block call it.
  __device__ __forceinline__ void combine_splits(int head, int split, uint32_t tag, float maximum,
                                                 float sum, float2 value) const {
    if (p.splits > 1) {
      constexpr int kPairs = (kHead + 2) / 2;
      TaggedPair* const results = reinterpret_cast<TaggedPair*>(p.words + p.offsets.splits) +
                                  int64_t{head} * p.splits * kPairs;
      if (split > 0) {
        TaggedPair* const own = results + split * kPairs;
        publish(own + thread, value.x, value.y, tag);
        if (thread == 0) publish(own + kHead / 2, maximum, sum, tag);
        return;
      }
      constexpr int kSplitsAtOnce = 4;
#pragma unroll 1
      for (int begin = 1; begin < p.splits; begin += kSplitsAtOnce) {
        uint4 values[kSplitsAtOnce] = {}, weights[kSplitsAtOnce] = {};  // maximum and sum
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          if (begin + i >= p.splits) break;
          const TaggedPair* const from = results + (begin + i) * kPairs;
          values[i] = poll(from + thread);
          weights[i] = poll(from + kHead / 2);
        }
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          if (begin + i >= p.splits) break;
          const TaggedPair* const from = results + (begin + i) * kPairs;
          const float2 other = await_pair(from + thread, values[i], tag);
          const float2 weight = await_pair(from + kHead / 2, weights[i], tag);
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
    publish_two(result_at(head), pack_two<T>(value.x / sum, value.y / sum));
  }
};

}  // namespace megatron::kernels::cuda::text
