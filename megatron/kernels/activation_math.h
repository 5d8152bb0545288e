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

// x sigmoid(1.702 x), of min(x, 7) if kIsClamped.
template <class Math, bool kIsClamped>
struct QuickGeluOf {
  static constexpr float kSlope = 1.702f;
  static constexpr float kMost = 7.0f;
  MG_DEVICE static bool is_cut(float x) { return kIsClamped && x > kMost; }
  MG_DEVICE static float value(float x) {
    const float at = is_cut(x) ? kMost : x;
    return at * Math::sigmoid(kSlope * at);
  }
  MG_DEVICE static float derivative(float x) {
    const float s = Math::sigmoid(kSlope * x);
    return is_cut(x) ? 0.0f : s * Math::fma(kSlope * x, 1.0f - s, 1.0f);
  }
  // The linear half.
  MG_DEVICE static float linear(float x) requires kIsClamped {
    return 1.0f + (x > kMost ? kMost : x < -kMost ? -kMost : x);
  }
  MG_DEVICE static float linear_derivative(float x) {
    return x > kMost || x < -kMost ? 0.0f : 1.0f;
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

// The other half of a gated activation: x itself, unless the function changes it, too.
template <class Function>
MG_DEVICE float linear_half(float x) {
  if constexpr (requires { Function::linear(x); }) {
    return Function::linear(x);
  } else {
    return x;
  }
}
template <class Function>
MG_DEVICE float linear_half_gradient(float x, float dy) {
  if constexpr (requires { Function::linear(x); }) {
    return dy * Function::linear_derivative(x);
  } else {
    return dy;
  }
}

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
    case Activation::kGegluTanhFirst:
      return f.template operator()<GeluTanh, Gate::kFirstHalf>();
    case Activation::kQuickGeglu:
      return f.template operator()<QuickGeluOf<Math, false>, Gate::kFirstHalf>();
    case Activation::kClampedQuickGeglu:
      return f.template operator()<QuickGeluOf<Math, true>, Gate::kFirstHalf>();
  }
}

}  // namespace megatron::kernels
