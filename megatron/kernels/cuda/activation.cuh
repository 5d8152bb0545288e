#pragma once

#include "megatron/kernels/activation_math.h"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/cuda/reciprocal.cuh"

// The math of activations for device code.
namespace megatron::kernels::cuda {

inline constexpr float kLog2OfE = 1.4426950408889634f;

__device__ inline float sigmoid(float x) {
  return reciprocal_fast(1.0f + exp2_fast(-kLog2OfE * x));
}

// Elementary functions for activations.
struct ActivationMath {
  static __device__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
  static __device__ float exp(float x) { return expf(x); }
  static __device__ float erf(float x) { return erff(x); }
  static __device__ float sigmoid(float x) { return cuda::sigmoid(x); }

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
};

using GeluTanh = ActivationMath::GeluTanh;
template <int kRoot>
using GeluErf = GeluErfOf<ActivationMath, kRoot>;
using Silu = SiluOf<ActivationMath>;
template <bool kIsClamped>
using QuickGelu = QuickGeluOf<ActivationMath, kIsClamped>;

// The activation of x1; of x1 and x2 if it is gated.
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
    case Activation::kGegluTanhFirst:
      return GeluTanh::value(x1) * x2;
    case Activation::kQuickGeglu:
      return QuickGelu<false>::value(x1) * x2;
    case Activation::kClampedQuickGeglu:
      return QuickGelu<true>::value(x1) * QuickGelu<true>::linear(x2);
  }
  return 0;
}

// Calls f.operator()<Function, Gate>() for the activation.
template <class F>
void dispatch_activation(Activation activation, const F& f) {
  kernels::dispatch_activation<ActivationMath>(activation, f);
}

}  // namespace megatron::kernels::cuda
