#pragma once

#include "megatron/device/host_device.h"
#include "megatron/kernels/activation.h"

// The functions of activations and their derivatives in fp32, for both devices. Math has a device's
// elementary functions: fma, exp, erf and sigmoid, and GeluTanh, which each device computes from
// the function that is fast there.
namespace megatron::kernels {

// 0.5 x (1 + erf(x / root)). kRoot: 2 for the square root of 2, 0 for ONNX's 1.41421.
template <class Math, int kRoot>
struct GeluErfOf {
  static constexpr float kInverse =
      kRoot == 2 ? 0.70710678118654752f : static_cast<float>(1.0 / 1.41421);
  static constexpr float kDensity = 1.12837916709551257f * kInverse;  // 2 / sqrt(pi) / root
  MG_DEVICE static float value(float x) { return 0.5f * x * (1.0f + Math::erf(x * kInverse)); }
  MG_DEVICE static float derivative(float x) {
    const float u = x * kInverse;
    return 0.5f * (1.0f + Math::erf(u)) + 0.5f * kDensity * x * Math::exp(-u * u);
  }
};

template <class Math>
struct SiluOf {
  MG_DEVICE static float value(float x) { return x * Math::sigmoid(x); }
  MG_DEVICE static float derivative(float x) {
    const float s = Math::sigmoid(x);
    return s * Math::fma(x, 1.0f - s, 1.0f);
  }
};

struct SquaredRelu {
  MG_DEVICE static float value(float x) { return x > 0 ? x * x : 0.0f; }
  MG_DEVICE static float derivative(float x) { return x > 0 ? 2 * x : 0.0f; }
};

struct Relu {
  MG_DEVICE static float value(float x) { return x > 0 ? x : 0.0f; }
  MG_DEVICE static float derivative(float x) { return x > 0 ? 1.0f : 0.0f; }
};

struct Identity {
  MG_DEVICE static float value(float x) { return x; }
  MG_DEVICE static float derivative(float) { return 1.0f; }
};

// The half that the function of a gated activation applies to.
enum class Gate { kNone, kFirstHalf, kSecondHalf };

// Calls f.operator()<Function, Gate>() for the activation.
template <class Math, class F>
void dispatch_activation(Activation activation, const F& f) {
  using GeluTanh = typename Math::GeluTanh;
  using GeluErf = GeluErfOf<Math, 2>;
  using Silu = SiluOf<Math>;
  switch (activation) {
    case Activation::kGeluTanh:
      return f.template operator()<GeluTanh, Gate::kNone>();
    case Activation::kGeluErf:
      return f.template operator()<GeluErf, Gate::kNone>();
    case Activation::kGeluOnnx:
      return f.template operator()<GeluErfOf<Math, 0>, Gate::kNone>();
    case Activation::kSquaredRelu:
      return f.template operator()<SquaredRelu, Gate::kNone>();
    case Activation::kRelu:
      return f.template operator()<Relu, Gate::kNone>();
    case Activation::kSwiglu:
      return f.template operator()<Silu, Gate::kFirstHalf>();
    case Activation::kGeglu:
      return f.template operator()<GeluErf, Gate::kSecondHalf>();
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

}  // namespace megatron::kernels
