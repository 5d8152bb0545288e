#pragma once

namespace megatron {

// The activation between the two linear layers of an MLP. Gated ones split the output of fc1 into
// halves x1, x2 along its last axis.
enum class Activation {
  kGeluTanh,      // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,       // 0.5 x (1 + erf(x / sqrt(2)))
  kGeluOnnx,      // 0.5 x (1 + erf(x / 1.41421))
  kSquaredRelu,   // max(x, 0)^2
  kRelu,          // max(x, 0)
  kSwiglu,        // silu(x1) * x2: the gate is the first half
  kGeglu,         // x1 * gelu_erf(x2): the gates of the next five are the second half
  kLiglu,         // x1 * x2
  kReglu,         // x1 * relu(x2)
  kSwigluSecond,  // x1 * silu(x2)
  kGegluTanh,     // x1 * gelu_tanh(x2)
  // The gate of the next ones is the first half.
  kGegluTanhFirst,     // gelu_tanh(x1) * x2 (Gemma)
  kQuickGeglu,         // x1 sigmoid(1.702 x1) * x2
  kClampedQuickGeglu,  // the same of min(x1, 7) and 1 + clamp(x2, -7, 7) (GPT-OSS)
};

// True if the activation halves the width of its input.
constexpr bool is_gated(Activation activation) { return activation >= Activation::kSwiglu; }

}  // namespace megatron
