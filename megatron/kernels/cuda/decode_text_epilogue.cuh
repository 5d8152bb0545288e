#pragma once

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/decode_text_common.cuh"

// Epilogue warp of the kernel decode_text: reduces the split-K partial products of the block,
// applies bias, activation and residual, and publishes the results to all blocks.
namespace megatron::kernels::cuda::text {

template <class T>
struct EpilogueWarp {
  static constexpr int kLineElements = 64;

  const Parameters& p;
  const DecodeTextShape& s;
  SharedMemory shared;
  int lane;
  int turn = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ float product(int row) const {
    const float* const products = shared.products + turn * kMmaWarps * p.part_rows + row;
    float sums[2] = {};
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) sums[w % 2] += products[w * p.part_rows];
    return sums[0] + sums[1];
  }
  // Waits for the products and calls f(row, product) for the lane's rows, lane + 32 i, of the part;
  // two rows at a time. Then releases the buffer.
  template <class F>
  __device__ __forceinline__ void for_each_product(const RowRange& part, const F& f) {
    barrier::wait(shared_address(shared.products_full + turn), parity);
#pragma unroll 1
    for (int row = lane; row < part.count; row += 2 * kWarp) {
      const bool has_second = row + kWarp < part.count;
      const float first = product(row), second = has_second ? product(row + kWarp) : 0.0f;
      f(row, first);
      if (has_second) f(row + kWarp, second);
    }
    __syncwarp();
    if (lane == 0) barrier::arrive(shared_address(shared.products_empty + turn));
    parity ^= static_cast<uint32_t>(turn);
    turn ^= 1;
  }
  // Each lane accesses only its own rows of shared.biases and shared.residual.
  __device__ __forceinline__ void load_biases(const void* bias, const RowRange& part, int from) {
    for (int row = lane; row < part.count; row += kWarp) {
      shared.biases[from + row] = element_now<T>(bias, int64_t{part.begin} + row);
    }
  }
  __device__ __forceinline__ static const void* bias_of(const DecodeTextLayer& layer, int product) {
    return product == kQkv    ? layer.qkv_bias
           : product == kProj ? layer.proj_bias
           : product == kFc1  ? layer.fc1_bias
           : product == kFc2  ? layer.fc2_bias
                              : nullptr;
  }
  // Prefetches one line of a norm's parameters into L2; the blocks together prefetch all of them.
  __device__ __forceinline__ void prefetch_norm(const void* parameters) const {
    const int64_t element = int64_t{blockIdx.x} * kLineElements;
    if (parameters != nullptr && lane == 0 && element < s.hidden) {
      prefetch_line(static_cast<const T*>(parameters) + element);
    }
  }

  // Clears the block's published output of two products ago, not counting a router's. All blocks
  // have read it: this block has since received elements that each of them published later.
  __device__ __forceinline__ void clear_earlier_output(int product) const {
    const BlockProduct& old = shared.plan[(product + kProducts - 2) % kProducts];
    FlaggedElement* const elements = vector_at(p, old.output);
    for (int row = lane; row < old.rows.count; row += kWarp) {
      clear(elements + padded_index(old.rows.begin + row));
    }
    fence_clears();
  }

  __device__ __forceinline__ void run(uint32_t first_tag) {
    const auto ffn = static_cast<int>(s.ffn);
    const RowRange residual_rows = shared.plan[kProj].rows;
    for (int row = lane; row < residual_rows.count; row += kWarp) {
      shared.residual[row] = element_now<T>(p.x, int64_t{residual_rows.begin} + row);
    }
#pragma unroll 1
    for (ProductOrder at{p}; at.product != kLogits; at.advance()) {
      const int index = at.product;
      const BlockProduct own = shared.plan[index];
      const RowRange& part = own.rows;
      if (part.count == 0) continue;  // of a router
      const uint32_t tag = first_tag + static_cast<uint32_t>(at.layer);
      const void* const bias = bias_of(shared.layers[at.layer], index);
      const bool is_gated = own.halves == 2, is_router = index == kRouter;
      if (index == kQkv &&
          at.layer + 1 < static_cast<int>(s.layers)) {  // prefetch for the next layer
        const DecodeTextLayer& next = shared.layers[at.layer + 1];
        prefetch_norm(next.input_norm_weight);
        prefetch_norm(next.input_norm_bias);
        prefetch_norm(next.mlp_norm_weight);
        prefetch_norm(next.mlp_norm_bias);
      }
      load_biases(bias, part, 0);
      if (is_gated) load_biases(bias, {part.begin + ffn, part.count}, part.count);
      FlaggedElement* const to = vector_at(p, own.output);
      for_each_product(part, [&](int row, float y) {
        if (is_router) {
          const float logit = s.rounds_router ? rounded<T>(y) : y;
          return publish(router_logit_at(p, part.begin + row), logit, tag);
        }
        if (index == kFc1) {
          const int second = part.count + row;
          const float weight =
              at.has_experts() ? shared.chosen->weights[(part.begin + row) / ffn] : 1;
          const float of_input = s.weighs_input ? weight : 1,
                      of_output = s.weighs_input ? 1 : weight;
          const float x1 = rounded<T>(y * of_input) + shared.biases[row];
          const float x2 =
              is_gated ? rounded<T>(product(second) * of_input) + shared.biases[second] : 0.0f;
          y = activated(s.activation, x1, x2) * of_output;
        } else {
          y += shared.biases[row];
          if (index != kQkv) {
            y = rounded<T>(y + shared.residual[row]);
            shared.residual[row] = y;
          }
        }
        publish(to + padded_index(part.begin + row), from_float<T>(y).bits);
      });
      if (!is_router) clear_earlier_output(index);
    }
    const RowRange logits = shared.plan[kLogits].rows;
    for (int first = 0; first < logits.count; first += kHeadRows) {
      const RowRange part{logits.begin + first, min(kHeadRows, logits.count - first)};
      for_each_product(part, [&](int row, float y) {
        static_cast<T*>(p.logits)[part.begin + row] = from_float<T>(y);
      });
    }
  }
};

}  // namespace megatron::kernels::cuda::text
