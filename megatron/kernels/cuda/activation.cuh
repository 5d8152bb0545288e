#pragma once

#include "megatron/kernels/activation.h"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/cuda/reciprocal.cuh"

// The functions of activations and their derivatives for device code.
namespace megatron::kernels::cuda {

inline constexpr float kLog2OfE = 1.4426950408889634f;

__device__ inline float sigmoid(float x) {
  return reciprocal_fast(1.0f + exp2_fast(-kLog2OfE * x));
}

// (1 + tanh(u)) / 2 is sigmoid(2 u): one exponential, and no cancellation where x is far below 0.
struct GeluTanh {
  static __device__ float gate(float x) {
    constexpr float kLinear = -2 * kLog2OfE * 0.79788456f;
    return reciprocal_fast(1.0f + exp2_fast(x * fmaf(0.044715f * kLinear * x, x, kLinear)));
  }
  static __device__ float value(float x) { return x * gate(x); }
  static __device__ float derivative(float x) {
    const float s = gate(x);
    return fmaf(2.0f * x * s * (1.0f - s), fmaf(0.1070322243f * x, x, 0.79788456f), s);
  }
};

// kRoot: 2 for erf(x / sqrt(2)), 0 for ONNX's erf(x / 1.41421).
template <int kRoot>
struct GeluErf {
  static constexpr float kInverse =
      kRoot == 2 ? 0.70710678118654752f : static_cast<float>(1.0 / 1.41421);
  static constexpr float kDensity = 1.12837916709551257f * kInverse;  // 2 / sqrt(pi) / root
  static __device__ float value(float x) { return 0.5f * x * (1.0f + erff(x * kInverse)); }
  static __device__ float derivative(float x) {
    const float u = x * kInverse;
    return 0.5f * (1.0f + erff(u)) + 0.5f * kDensity * x * expf(-u * u);
  }
};

struct SquaredRelu {
  static __device__ float value(float x) { return x > 0 ? x * x : 0.0f; }
  static __device__ float derivative(float x) { return x > 0 ? 2 * x : 0.0f; }
};

struct Relu {
  static __device__ float value(float x) { return x > 0 ? x : 0.0f; }
  static __device__ float derivative(float x) { return x > 0 ? 1.0f : 0.0f; }
};

struct Silu {
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float derivative(float x) {
    const float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
  }
};

struct Identity {
  static __device__ float value(float x) { return x; }
  static __device__ float derivative(float) { return 1.0f; }
};

// The half that the function of a gated activation applies to.
enum class Gate { kNone, kFirstHalf, kSecondHalf };

// Calls f.operator()<Function, Gate>() for the activation.
template <class F>
void dispatch_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kGeluTanh:
      return f.template operator()<GeluTanh, Gate::kNone>();
    case Activation::kGeluErf:
      return f.template operator()<GeluErf<2>, Gate::kNone>();
    case Activation::kGeluOnnx:
      return f.template operator()<GeluErf<0>, Gate::kNone>();
    case Activation::kSquaredRelu:
      return f.template operator()<SquaredRelu, Gate::kNone>();
    case Activation::kRelu:
      return f.template operator()<Relu, Gate::kNone>();
    case Activation::kSwiglu:
      return f.template operator()<Silu, Gate::kFirstHalf>();
    case Activation::kGeglu:
      return f.template operator()<GeluErf<2>, Gate::kSecondHalf>();
    case Activation::kLiglu:
      return f.template operator()<Identity, Gate::kSecondHalf>();
    case Activation::kReglu:
      return f.template operator()<Relu, Gate::kSecondHalf>();
    case Activation::kSwigluSecond:
      return f.template operator()<Silu, Gate::kSecondHalf>();
    case Activation::kGegluTanh:
      return f.template operator()<GeluTanh, Gate::kSecondHalf>();
  }
}

}  // namespace megatron::kernels::cuda
