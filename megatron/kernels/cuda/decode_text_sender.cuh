#pragma once

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/decode_text_worker.cuh"

// The warp of the kernel decode_text that sends what the block has multiplied.
namespace megatron::kernels::cuda::text {

__device__ inline float activated(Activation activation, float x1, float x2) {
  switch (activation) {
    case Activation::kGeluTanh:
      return GeluTanh::value(x1);
    case Activation::kGeluErf:
      return GeluErf<2>::value(x1);
    case Activation::kGeluOnnx:
      return GeluErf<0>::value(x1);
    case Activation::kSquaredRelu:
      return SquaredRelu::value(x1);
    case Activation::kRelu:
      return Relu::value(x1);
    case Activation::kSwiglu:
      return Silu::value(x1) * x2;
    case Activation::kGeglu:
      return x1 * GeluErf<2>::value(x2);
    case Activation::kLiglu:
      return x1 * x2;
    case Activation::kReglu:
      return x1 * Relu::value(x2);
    case Activation::kSwigluSecond:
      return x1 * Silu::value(x2);
    case Activation::kGegluTanh:
      return x1 * GeluTanh::value(x2);
  }
  return 0;
}

template <class T>
struct Sender {
  static constexpr int kLineElements = 64;

  const Parameters& p;
  const DecodeTextShape& s;
  SharedMemory shared;
  int lane;
  int turn = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ float product(int row) const {
    const float* const products = shared.products + turn * kMultipliers * p.part_rows + row;
    float sums[2] = {};
#pragma unroll
    for (int w = 0; w < kMultipliers; ++w) sums[w % 2] += products[w * p.part_rows];
    return sums[0] + sums[1];
  }
  // f(row, product) for the lane's rows, lane + 32 i, of the part, when the products are there; two
  // rows at once.
  template <class F>
  __device__ __forceinline__ void take(const RowPart& part, const F& f) {
    barrier::wait(shared_address(shared.complete + turn), parity);
#pragma unroll 1
    for (int row = lane; row < part.count; row += 2 * kWarp) {
      const bool has_second = row + kWarp < part.count;
      const float first = product(row), second = has_second ? product(row + kWarp) : 0.0f;
      f(row, first);
      if (has_second) f(row + kWarp, second);
    }
    __syncwarp();
    if (lane == 0) barrier::arrive(shared_address(shared.taken + turn));
    parity ^= static_cast<uint32_t>(turn);
    turn ^= 1;
  }
  // A lane reads and writes its own rows of shared.biases and shared.residual.
  __device__ __forceinline__ void take_biases(const void* bias, const RowPart& part, int from) {
    for (int row = lane; row < part.count; row += kWarp) {
      shared.biases[from + row] = element_now<T>(bias, int64_t{part.begin} + row);
    }
  }
  __device__ __forceinline__ static const void* bias_of(const DecodeTextLayer& layer, int product) {
    return product == kQkv    ? layer.qkv_bias
           : product == kProj ? layer.proj_bias
           : product == kFc1  ? layer.fc1_bias
                              : layer.fc2_bias;
  }
  // Asks for a line of a norm's parameters, another in each block, so that all are in the cache.
  __device__ __forceinline__ void prefetch_norm(const void* parameters) const {
    const int64_t element = int64_t{blockIdx.x} * kLineElements;
    if (parameters != nullptr && lane == 0 && element < s.hidden) {
      prefetch_line(static_cast<const T*>(parameters) + element);
    }
  }

  // Clears what the block has sent of the product before the one before. All have read it: the
  // block has now received something from each of the others that they send after.
  __device__ __forceinline__ void clear_before(int product) const {
    const BlockProduct& old = shared.plan[(product + kProducts - 2) % kProducts];
    Place* const places = vector_of(p, old.output);
    for (int row = lane; row < old.rows.count; row += kWarp) {
      clear(places + place_of(old.rows.begin + row));
    }
    await_cleared();
  }

  __device__ __forceinline__ void run() {
    const auto ffn = static_cast<int>(s.ffn);
    const RowPart residual_rows = shared.plan[kProj].rows;
    for (int row = lane; row < residual_rows.count; row += kWarp) {
      shared.residual[row] = element_now<T>(p.x, int64_t{residual_rows.begin} + row);
    }
    const auto all = static_cast<int>(s.layers) * kProducts;
#pragma unroll 1
    for (int i = 0; i < all; ++i) {
      const int index = i % kProducts;
      const BlockProduct own = shared.plan[index];
      const RowPart& part = own.rows;
      const void* const bias = bias_of(shared.layers[i / kProducts], index);
      const bool is_gated = own.halves == 2;
      if (index == kQkv && i + kProducts < all) {  // of the next layer
        const DecodeTextLayer& next = shared.layers[i / kProducts + 1];
        prefetch_norm(next.input_norm_weight);
        prefetch_norm(next.input_norm_bias);
        prefetch_norm(next.mlp_norm_weight);
        prefetch_norm(next.mlp_norm_bias);
      }
      take_biases(bias, part, 0);
      if (is_gated) take_biases(bias, {part.begin + ffn, part.count}, part.count);
      Place* const to = vector_of(p, own.output);
      take(part, [&](int row, float y) {
        if (index == kFc1) {
          const int second = part.count + row;
          const float x1 = rounded<T>(y) + shared.biases[row];
          const float x2 = is_gated ? rounded<T>(product(second)) + shared.biases[second] : 0.0f;
          y = activated(s.activation, x1, x2);
        } else {
          y += shared.biases[row];
          if (index != kQkv) {
            y = rounded<T>(y + shared.residual[row]);
            shared.residual[row] = y;
          }
        }
        send(to + place_of(part.begin + row), from_float<T>(y).bits);
      });
      clear_before(index);
    }
    const RowPart logits = shared.plan[kLogits].rows;
    for (int first = 0; first < logits.count; first += kHeadRows) {
      const RowPart part{logits.begin + first, min(kHeadRows, logits.count - first)};
      take(part, [&](int row, float y) {
        static_cast<T*>(p.logits)[part.begin + row] = from_float<T>(y);
      });
    }
  }
};

}  // namespace megatron::kernels::cuda::text
